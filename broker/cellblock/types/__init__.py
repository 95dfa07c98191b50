"""What agents and scripts are told of types: declarations, learnt shapes, the checker."""
