"""Rebuilds missing Kafka producer snapshots on Spark, and ships segments with them to tiered storage.

The four packages lie at the top of the repository; in a checkout, links stand here for them, and the wheel has them
here. So an installation owns one import name, ``resnap``, and no package of another project can overwrite a part of it.
"""
