-- Statistics: the statement of every transition inserts one small delta. A maintenance service
-- aggregates the deltas to totals and rates.
CREATE TABLE stat_deltas (
    lane      int         NOT NULL,
    scheduled int         NOT NULL DEFAULT 0,
    at        timestamptz NOT NULL DEFAULT now(),
    blocked   int         NOT NULL DEFAULT 0,
    ready     int         NOT NULL DEFAULT 0,
    running   int         NOT NULL DEFAULT 0,
    completed int         NOT NULL DEFAULT 0,
    cancelled int         NOT NULL DEFAULT 0,
    dead      int         NOT NULL DEFAULT 0,
    enqueued  int         NOT NULL DEFAULT 0,
    failed    int         NOT NULL DEFAULT 0
);

CREATE INDEX stat_deltas_lane ON stat_deltas (lane);

CREATE TABLE stat_totals (
    lane      int    PRIMARY KEY,
    scheduled bigint NOT NULL,
    blocked   bigint NOT NULL,
    ready     bigint NOT NULL,
    running   bigint NOT NULL,
    completed bigint NOT NULL,
    cancelled bigint NOT NULL,
    dead      bigint NOT NULL
);

-- Numbers of events in each period of ten seconds.
CREATE TABLE stat_rates (
    lane         int         NOT NULL,
    bucket_start timestamptz NOT NULL,
    enqueued     bigint      NOT NULL,
    completed    bigint      NOT NULL,
    failed       bigint      NOT NULL,
    dead         bigint      NOT NULL,
    PRIMARY KEY (lane, bucket_start)
);

-- Histograms of waiting and running times. The bucket bounds are fixed, so that percentiles cost
-- the same for ten jobs and for ten million.
CREATE TABLE stat_durations (
    lane   int         NOT NULL,
    minute timestamptz NOT NULL,
    kind   text        NOT NULL,
    bucket smallint    NOT NULL,
    count  bigint      NOT NULL,
    PRIMARY KEY (lane, minute, kind, bucket)
);
