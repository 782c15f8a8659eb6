-- The tables in which `flow-agent collect --output clickhouse=http://HOST:8123/DATABASE/flows` stores. docs/clickhouse.md says
-- what the columns mean.
--
--     clickhouse-client --database DATABASE --multiquery < flows.sql
--
-- Rows come at least once. What came again has the same sorting key and the same partition, so ReplacingMergeTree makes one row
-- of them, when it merges the parts, and before that in each query that says FINAL. So a sum is right if it says FINAL.

-- A table of an earlier version without `identity` has another sorting key: rename it, and make this one.

-- A row for each record of a flow.
CREATE TABLE IF NOT EXISTS flows
(
    -- Who sent it. Numbers count within it.
    identity LowCardinality(String),
    agent_id LowCardinality(String),
    hostname LowCardinality(String),
    boot_id LowCardinality(String),
    instance_id LowCardinality(String),
    stream_id LowCardinality(String),
    record UInt32,
    scan_id UInt64,
    stream_seq UInt64 CODEC(Delta, ZSTD),
    window_start DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    window_end DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    interface LowCardinality(String),
    ifindex UInt32,
    netns UInt32,
    netns_name LowCardinality(String),
    -- No Enum: a later agent may know more values, and inserts must not fail then.
    direction LowCardinality(String),
    reverse_direction LowCardinality(String),
    vlan_ids Array(UInt16),
    ip_version UInt8,
    protocol UInt8,
    -- An IPv4 address is there as ::ffff:192.0.2.1, and equal to toIPv6('192.0.2.1').
    src_addr IPv6,
    src_port Nullable(UInt16),
    dst_addr IPv6,
    dst_port Nullable(UInt16),
    icmp_type Nullable(UInt8),
    icmp_code Nullable(UInt8),
    icmp_identifier Nullable(UInt16),
    later_fragment Bool,
    -- Whether the source may not be the one who opened the flow.
    initiator_assumed Bool,
    packets UInt64,
    bytes UInt64,
    reverse_packets UInt64,
    reverse_bytes UInt64,
    ip_bytes UInt64,
    reverse_ip_bytes UInt64,
    total_packets UInt64,
    total_bytes UInt64,
    total_reverse_packets UInt64,
    total_reverse_bytes UInt64,
    total_ip_bytes UInt64,
    total_reverse_ip_bytes UInt64,
    first_seen DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    last_seen DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    -- From the first to the last packet that the record counts: bytes divided by it are the rate.
    duration_ns UInt64,
    tcp_flags Nullable(UInt8),
    reverse_tcp_flags Nullable(UInt8),
    dscp Nullable(UInt8),
    end_reason LowCardinality(String),
    community_id String,
    encapsulation LowCardinality(String),
    tunnel_id Nullable(UInt32),
    outer_src_addr Nullable(IPv6),
    outer_dst_addr Nullable(IPv6),
    outer_vlan_ids Array(UInt16),
    outer_pppoe_session Nullable(UInt16),
    -- Who sent the packets of each end, as far as the agent looks for it (--enrich unit). Empty if it is not known.
    src_unit LowCardinality(String),
    dst_unit LowCardinality(String),
    src_container_id LowCardinality(String),
    dst_container_id LowCardinality(String),
    src_cgroup LowCardinality(String),
    dst_cgroup LowCardinality(String),
    -- The process that made the socket of each end, likewise (--enrich process).
    src_process LowCardinality(String),
    dst_process LowCardinality(String),
    -- Whether others have sent some of the packets, too.
    src_sender_shared Bool,
    dst_sender_shared Bool,
    src_pid Nullable(UInt32),
    dst_pid Nullable(UInt32),
    src_uid Nullable(UInt32),
    dst_uid Nullable(UInt32),
    -- What TCP knows of the connection on the side of each end, likewise (--enrich tcp).
    src_tcp_rtt_us Nullable(UInt32),
    dst_tcp_rtt_us Nullable(UInt32),
    src_tcp_min_rtt_us Nullable(UInt32),
    dst_tcp_min_rtt_us Nullable(UInt32),
    src_tcp_total_retrans Nullable(UInt32),
    dst_tcp_total_retrans Nullable(UInt32),
    src_tcp_delivered Nullable(UInt32),
    dst_tcp_delivered Nullable(UInt32),
    src_tcp_delivered_ce Nullable(UInt32),
    dst_tcp_delivered_ce Nullable(UInt32),
    src_tcp_data_segs_out Nullable(UInt32),
    dst_tcp_data_segs_out Nullable(UInt32),
    -- How long each end took to answer what passed the interface, in microseconds (--enrich rtt).
    src_handshake_rtt_us Nullable(UInt32),
    dst_handshake_rtt_us Nullable(UInt32),
    src_ack_rtt_us Nullable(UInt32),
    dst_ack_rtt_us Nullable(UInt32),
    -- Packets that the kernel of the agent's host has dropped after they had arrived and were counted; 0 also without --enrich drops.
    total_dropped_packets UInt64,
    total_reverse_dropped_packets UInt64,
    -- What came of a flow that failed: refused, unanswered, unreachable, reset. Empty if nothing is known to have gone wrong.
    failure LowCardinality(String),
    icmp_error_type Nullable(UInt8),
    icmp_error_code Nullable(UInt8),
    -- What each end was called when the flow began, and how that was learned, likewise (--enrich dns).
    src_host String,
    dst_host String,
    src_host_source LowCardinality(String),
    dst_host_source LowCardinality(String),
    sample_rate UInt32,
    -- As people write them.
    src String ALIAS replaceRegexpOne(toString(src_addr), '^::ffff:([0-9.]+)$', '\\1'),
    dst String ALIAS replaceRegexpOne(toString(dst_addr), '^::ffff:([0-9.]+)$', '\\1')
)
ENGINE = ReplacingMergeTree
-- Of the flow's window and not of the insert, so that what comes again is in the same partition.
PARTITION BY toDate(window_end)
ORDER BY (identity, agent_id, boot_id, instance_id, stream_id, stream_seq, record)
-- TTL toDateTime(window_end) + INTERVAL 90 DAY
-- A batch is acknowledged, and forgotten by its agent, when the insert is answered. So it should be on the disk by then.
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- For a table of an earlier version. Do this before the collector is upgraded, since it names all columns.
ALTER TABLE flows
    ADD COLUMN IF NOT EXISTS src_unit LowCardinality(String) AFTER outer_pppoe_session,
    ADD COLUMN IF NOT EXISTS dst_unit LowCardinality(String) AFTER src_unit,
    ADD COLUMN IF NOT EXISTS src_container_id LowCardinality(String) AFTER dst_unit,
    ADD COLUMN IF NOT EXISTS dst_container_id LowCardinality(String) AFTER src_container_id,
    ADD COLUMN IF NOT EXISTS src_cgroup LowCardinality(String) AFTER dst_container_id,
    ADD COLUMN IF NOT EXISTS dst_cgroup LowCardinality(String) AFTER src_cgroup,
    ADD COLUMN IF NOT EXISTS src_process LowCardinality(String) AFTER dst_cgroup,
    ADD COLUMN IF NOT EXISTS dst_process LowCardinality(String) AFTER src_process,
    ADD COLUMN IF NOT EXISTS src_pid Nullable(UInt32) AFTER dst_process,
    ADD COLUMN IF NOT EXISTS dst_pid Nullable(UInt32) AFTER src_pid,
    ADD COLUMN IF NOT EXISTS src_uid Nullable(UInt32) AFTER dst_pid,
    ADD COLUMN IF NOT EXISTS dst_uid Nullable(UInt32) AFTER src_uid,
    ADD COLUMN IF NOT EXISTS src_tcp_rtt_us Nullable(UInt32) AFTER dst_uid,
    ADD COLUMN IF NOT EXISTS dst_tcp_rtt_us Nullable(UInt32) AFTER src_tcp_rtt_us,
    ADD COLUMN IF NOT EXISTS src_tcp_min_rtt_us Nullable(UInt32) AFTER dst_tcp_rtt_us,
    ADD COLUMN IF NOT EXISTS dst_tcp_min_rtt_us Nullable(UInt32) AFTER src_tcp_min_rtt_us,
    ADD COLUMN IF NOT EXISTS src_tcp_total_retrans Nullable(UInt32) AFTER dst_tcp_min_rtt_us,
    ADD COLUMN IF NOT EXISTS dst_tcp_total_retrans Nullable(UInt32) AFTER src_tcp_total_retrans,
    ADD COLUMN IF NOT EXISTS src_tcp_delivered Nullable(UInt32) AFTER dst_tcp_total_retrans,
    ADD COLUMN IF NOT EXISTS dst_tcp_delivered Nullable(UInt32) AFTER src_tcp_delivered,
    ADD COLUMN IF NOT EXISTS src_tcp_delivered_ce Nullable(UInt32) AFTER dst_tcp_delivered,
    ADD COLUMN IF NOT EXISTS dst_tcp_delivered_ce Nullable(UInt32) AFTER src_tcp_delivered_ce,
    ADD COLUMN IF NOT EXISTS src_tcp_data_segs_out Nullable(UInt32) AFTER dst_tcp_delivered_ce,
    ADD COLUMN IF NOT EXISTS dst_tcp_data_segs_out Nullable(UInt32) AFTER src_tcp_data_segs_out,
    ADD COLUMN IF NOT EXISTS src_handshake_rtt_us Nullable(UInt32) AFTER dst_tcp_data_segs_out,
    ADD COLUMN IF NOT EXISTS dst_handshake_rtt_us Nullable(UInt32) AFTER src_handshake_rtt_us,
    ADD COLUMN IF NOT EXISTS src_ack_rtt_us Nullable(UInt32) AFTER dst_handshake_rtt_us,
    ADD COLUMN IF NOT EXISTS dst_ack_rtt_us Nullable(UInt32) AFTER src_ack_rtt_us,
    ADD COLUMN IF NOT EXISTS total_dropped_packets UInt64 AFTER dst_ack_rtt_us,
    ADD COLUMN IF NOT EXISTS total_reverse_dropped_packets UInt64 AFTER total_dropped_packets,
    ADD COLUMN IF NOT EXISTS failure LowCardinality(String) AFTER total_reverse_dropped_packets,
    ADD COLUMN IF NOT EXISTS icmp_error_type Nullable(UInt8) AFTER failure,
    ADD COLUMN IF NOT EXISTS icmp_error_code Nullable(UInt8) AFTER icmp_error_type,
    ADD COLUMN IF NOT EXISTS src_host String AFTER icmp_error_code,
    ADD COLUMN IF NOT EXISTS dst_host String AFTER src_host,
    ADD COLUMN IF NOT EXISTS src_host_source LowCardinality(String) AFTER dst_host,
    ADD COLUMN IF NOT EXISTS dst_host_source LowCardinality(String) AFTER src_host_source,
    ADD COLUMN IF NOT EXISTS initiator_assumed Bool AFTER later_fragment,
    ADD COLUMN IF NOT EXISTS duration_ns UInt64 AFTER last_seen,
    ADD COLUMN IF NOT EXISTS src_sender_shared Bool AFTER dst_process,
    ADD COLUMN IF NOT EXISTS dst_sender_shared Bool AFTER src_sender_shared;

-- A row for each batch. It comes after the batch's records, so they are there if it is; and it says what was lost before it.
CREATE TABLE IF NOT EXISTS flows_batches
(
    identity LowCardinality(String),
    agent_id LowCardinality(String),
    hostname LowCardinality(String),
    boot_id LowCardinality(String),
    instance_id LowCardinality(String),
    stream_id LowCardinality(String),
    version LowCardinality(String),
    stream_seq UInt64 CODEC(Delta, ZSTD),
    scan_id UInt64 CODEC(Delta, ZSTD),
    batch_index UInt32,
    last_of_scan Bool,
    window_start DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    window_end DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    -- What its rows in flows sum up to, of both directions.
    records UInt64,
    packets UInt64,
    bytes UInt64,
    -- Since the stream began, before any collector had it.
    lost_batches UInt64,
    lost_records UInt64,
    lost_packets UInt64,
    lost_bytes UInt64,
    -- Since the stream began: what the agent's own settings of its output keep out.
    left_out_records UInt64,
    left_out_packets UInt64,
    left_out_bytes UInt64,
    refused_in_window Bool,
    sample_rate UInt32,
    -- The rest is of a scan, and in its last batch alone.
    tracked_flows UInt64,
    final Bool,
    seen_packets UInt64,
    seen_bytes UInt64,
    flows_packets UInt64,
    flows_bytes UInt64,
    account String
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(window_end)
ORDER BY (identity, agent_id, boot_id, instance_id, stream_id, stream_seq)
-- A batch that only tells what was lost at the end has no window.
-- TTL toDateTime(window_end) + INTERVAL 90 DAY DELETE WHERE scan_id != 0
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Each record once.
CREATE OR REPLACE VIEW flows_once AS SELECT *, src, dst FROM flows FINAL;

-- What each stream of an agent should sum up to, and what it lost. `lost_packets` above zero, or fewer packets in `flows_once` than
-- here, say that a sum is not whole.
CREATE VIEW IF NOT EXISTS flows_streams AS
SELECT
    identity,
    agent_id,
    argMax(hostname, stream_seq) AS hostname,
    stream_id,
    min(window_start) AS since,
    max(window_end) AS until,
    count() AS batches,
    sum(records) AS records,
    sum(packets) AS packets,
    sum(bytes) AS bytes,
    max(lost_batches) AS lost_batches,
    max(lost_records) AS lost_records,
    max(lost_packets) AS lost_packets,
    max(lost_bytes) AS lost_bytes,
    max(left_out_records) AS left_out_records,
    max(left_out_packets) AS left_out_packets,
    max(left_out_bytes) AS left_out_bytes,
    countIf(refused_in_window) AS batches_with_refusals
FROM flows_batches FINAL
GROUP BY identity, agent_id, stream_id;
