"""Objects where `LocalTieredStorage`, the reference implementation of Kafka's tests, reads them."""
