"""The layout ``local-tiered``: objects where `LocalTieredStorage`, Kafka's reference implementation, reads them."""
