"""Experience through queues between agents, predictors and trainers, as in GA3C."""
