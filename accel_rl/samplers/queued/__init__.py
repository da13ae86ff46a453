"""The queued sampler: agents are processes, and ask for actions and hand over segments through queues, as in GA3C."""
