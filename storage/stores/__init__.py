"""Object stores behind one small protocol, and the objects Resnap writes into them."""
