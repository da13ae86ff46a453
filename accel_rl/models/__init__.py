"""Networks: trunks that turn observations into features, and the policies that act on them."""
