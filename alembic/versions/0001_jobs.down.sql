DROP FUNCTION retire_finished_partition(text, boolean);
DROP FUNCTION make_finished_partition(date, boolean);
DROP TABLE stat_times, stat_rates, stat_totals, stat_deltas, keys, dead_letters, finished_jobs, jobs, leaders, workers, queues;
