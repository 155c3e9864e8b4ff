"""The batch protocol: which attempt of which batch is live, who may commit, and the accounts of its rows. No Spark here."""
