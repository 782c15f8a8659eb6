-- The tables for `flow-agent collect --output clickhouse=http://HOST:8123/DATABASE/flows`. docs/clickhouse.md describes
-- the columns.
--
--     clickhouse-client --database DATABASE --multiquery < flows.sql
--
-- Rows are delivered at least once. A repeated row has the same sorting key and partition, so ReplacingMergeTree
-- removes it when it merges parts, and until then in each query with FINAL. So use FINAL for correct sums.

-- One row per record of a flow.
CREATE TABLE IF NOT EXISTS flows
(
    -- The sender. `stream_seq`, `record` and the other numbers are unique only within it.
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
    sample_rate UInt32,
    -- The facts about the flow: docs/fields.md describes them.
    interface LowCardinality(String),
    netns_name LowCardinality(String),
    ifindex UInt32,
    netns UInt32,
    vlan_ids Array(UInt16),
    ip_version UInt8,
    protocol UInt8,
    src_addr IPv6,
    dst_addr IPv6,
    src_port Nullable(UInt16),
    dst_port Nullable(UInt16),
    direction LowCardinality(String),
    reverse_direction LowCardinality(String),
    packets UInt64,
    reverse_packets UInt64,
    bytes UInt64,
    reverse_bytes UInt64,
    ip_bytes UInt64,
    reverse_ip_bytes UInt64,
    total_packets UInt64,
    total_reverse_packets UInt64,
    total_bytes UInt64,
    total_reverse_bytes UInt64,
    total_ip_bytes UInt64,
    total_reverse_ip_bytes UInt64,
    tcp_flags Nullable(UInt8),
    reverse_tcp_flags Nullable(UInt8),
    dscp Nullable(UInt8),
    reverse_dscp Nullable(UInt8),
    dscp_changed Bool,
    reverse_dscp_changed Bool,
    outer_src_addr Nullable(IPv6),
    outer_dst_addr Nullable(IPv6),
    src_cgroup_id Nullable(UInt64),
    dst_cgroup_id Nullable(UInt64),
    src_cgroup LowCardinality(String),
    dst_cgroup LowCardinality(String),
    src_unit LowCardinality(String),
    dst_unit LowCardinality(String),
    src_slice LowCardinality(String),
    dst_slice LowCardinality(String),
    src_container_id LowCardinality(String),
    dst_container_id LowCardinality(String),
    src_container_runtime LowCardinality(String),
    dst_container_runtime LowCardinality(String),
    src_pid Nullable(UInt32),
    dst_pid Nullable(UInt32),
    src_process LowCardinality(String),
    dst_process LowCardinality(String),
    src_uid Nullable(UInt32),
    dst_uid Nullable(UInt32),
    src_sender_shared Bool,
    dst_sender_shared Bool,
    src_host String,
    dst_host String,
    src_host_source LowCardinality(String),
    dst_host_source LowCardinality(String),
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
    src_tcp_snd_cwnd Nullable(UInt32),
    dst_tcp_snd_cwnd Nullable(UInt32),
    src_tcp_delivery_rate Nullable(UInt64),
    dst_tcp_delivery_rate Nullable(UInt64),
    src_handshake_rtt_us Nullable(UInt32),
    dst_handshake_rtt_us Nullable(UInt32),
    src_ack_rtt_us Nullable(UInt32),
    dst_ack_rtt_us Nullable(UInt32),
    total_dropped_packets UInt64,
    total_reverse_dropped_packets UInt64,
    src_nat_addr Nullable(IPv6),
    dst_nat_addr Nullable(IPv6),
    src_nat_port Nullable(UInt16),
    dst_nat_port Nullable(UInt16),
    icmp_type Nullable(UInt8),
    icmp_code Nullable(UInt8),
    icmp_identifier Nullable(UInt16),
    later_fragment Bool,
    initiator_assumed Bool,
    first_seen DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    last_seen DateTime64(9, 'UTC') CODEC(Delta, ZSTD),
    duration_ns UInt64,
    end_reason LowCardinality(String),
    failure LowCardinality(String),
    icmp_error_type Nullable(UInt8),
    icmp_error_code Nullable(UInt8),
    community_id String,
    encapsulation LowCardinality(String),
    tunnel_id Nullable(UInt32),
    outer_vlan_ids Array(UInt16),
    outer_pppoe_session Nullable(UInt16),
    nat_side LowCardinality(String),
    nat_community_id String,
    -- The addresses in their usual notation.
    -- An IPv4 address is stored as ::ffff:192.0.2.1, which equals toIPv6('192.0.2.1').
    src String ALIAS replaceRegexpOne(toString(src_addr), '^::ffff:([0-9.]+)$', '\\1'),
    dst String ALIAS replaceRegexpOne(toString(dst_addr), '^::ffff:([0-9.]+)$', '\\1')
)
ENGINE = ReplacingMergeTree
-- By the time of the flow's window, not of the insert, so that a repeated row goes to the same partition.
PARTITION BY toDate(window_end)
ORDER BY (identity, agent_id, boot_id, instance_id, stream_id, stream_seq, record)
-- TTL toDateTime(window_end) + INTERVAL 90 DAY
-- Once the insert is answered, the batch is acknowledged and its agent forgets it. So it should be on disk by then.
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- One row per batch. It is inserted after the batch's records, so if it exists they do too. It also counts earlier
-- losses.
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
    -- The sums of its rows in flows, over both directions.
    records UInt64,
    packets UInt64,
    bytes UInt64,
    -- Losses before the flows reached a collector, since the stream began.
    lost_batches UInt64,
    lost_records UInt64,
    lost_packets UInt64,
    lost_bytes UInt64,
    -- Flows that the settings of the agent's output exclude, since the stream began.
    left_out_records UInt64,
    left_out_packets UInt64,
    left_out_bytes UInt64,
    refused_in_window Bool,
    sample_rate UInt32,
    -- The columns from here on describe a scan, and are set only in its last batch.
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
-- A batch that only reports losses at the end has no window.
-- TTL toDateTime(window_end) + INTERVAL 90 DAY DELETE WHERE scan_id != 0
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Every record exactly once.
CREATE OR REPLACE VIEW flows_once AS SELECT *, src, dst FROM flows FINAL;

-- The expected sums and the losses of each stream of an agent. A sum is incomplete if `lost_packets` is above zero or
-- `flows_once` has fewer packets than this view.
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
