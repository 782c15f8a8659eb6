#!/usr/bin/python3
"""Writes the captures for the test that compares the agent with tshark: one file for each kind of traffic,
byte for byte the same every time.

    make.py FOLDER
"""

import itertools
import struct
import sys
from pathlib import Path

from scapy.all import (
    ARP, GRE, ICMP, IP, LLC, SCTP, TCP, UDP, VXLAN, Dot1AD, Dot1Q, Ether,
    ICMPv6DestUnreach, ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6PacketTooBig, ICMPv6TimeExceeded,
    IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting,
    PadN, Raw, RouterAlert, fragment, raw,
)

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
LINK = {"forward": Ether(src=A, dst=B), "back": Ether(src=B, dst=A)}
V4 = ("10.9.0.1", "10.9.0.2")
V6 = ("fd09::1", "fd09::2")


def ip(version, way="forward", **fields):
    """Ethernet and IP between the two hosts."""
    source, destination = V4 if version == 4 else V6
    if way == "back":
        source, destination = destination, source
    layer = IP if version == 4 else IPv6
    return LINK[way] / layer(src=source, dst=destination, **fields)


def data(length):
    return Raw(bytes(range(256)) * (length // 256) + bytes(range(length % 256)))


def conversation(version, client, server, chunks):
    """A whole TCP connection: both sides send each chunk in turn."""
    here, there = dict(sport=client, dport=server), dict(sport=server, dport=client)
    yield ip(version) / TCP(**here, flags="S", seq=100)
    yield ip(version, "back") / TCP(**there, flags="SA", seq=500, ack=101)
    yield ip(version) / TCP(**here, flags="A", seq=101, ack=501)
    sent = [101, 501]
    for length in chunks:
        yield ip(version) / TCP(**here, flags="PA", seq=sent[0], ack=sent[1]) / data(length)
        sent[0] += length
        yield ip(version, "back") / TCP(**there, flags="PA", seq=sent[1], ack=sent[0]) / data(2 * length)
        sent[1] += 2 * length
    yield ip(version) / TCP(**here, flags="FA", seq=sent[0], ack=sent[1])
    yield ip(version, "back") / TCP(**there, flags="FA", seq=sent[1], ack=sent[0] + 1)
    yield ip(version) / TCP(**here, flags="A", seq=sent[0] + 1, ack=sent[1] + 1)


def ordinary():
    yield LINK["forward"] / ARP(hwsrc=A, psrc=V4[0], pdst=V4[1])
    for number, version in enumerate((4, 6, 4, 6)):
        yield from conversation(version, 40000 + number, 443, (1, 100, 700))
    for number in range(20):
        version = 4 if number % 2 == 0 else 6
        yield ip(version) / UDP(sport=50000 + number, dport=9999) / data(30 + number)
        yield ip(version, "back") / UDP(sport=9999, dport=50000 + number) / data(300 + number)
    for sequence in range(5):
        yield ip(4) / ICMP(type=8, id=77, seq=sequence) / data(56)
        yield ip(4, "back") / ICMP(type=0, id=77, seq=sequence) / data(56)
        yield ip(6) / ICMPv6EchoRequest(id=78, seq=sequence, data=b"x" * 56)
        yield ip(6, "back") / ICMPv6EchoReply(id=78, seq=sequence, data=b"x" * 56)
    for version in (4, 6):
        yield ip(version) / SCTP(sport=7000, dport=36412, tag=1) / data(40)
    yield ip(4, proto=2) / data(8)
    yield ip(4, proto=89) / data(44)
    yield ip(4, tos=0xB8, options=b"\x94\x04\0\0") / UDP(sport=51000, dport=9999) / data(9)
    yield LINK["forward"] / LLC(dsap=0x42, ssap=0x42, ctrl=3) / data(38)


def ipv6_extensions():
    hop = IPv6ExtHdrHopByHop(options=[RouterAlert(), PadN(optdata=b"\0\0")])
    long_hop = IPv6ExtHdrHopByHop(options=[PadN(optdata=bytes(60))])
    destination = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(4))])
    routing = IPv6ExtHdrRouting(type=0, addresses=["fd09::7"], segleft=0)
    atomic = IPv6ExtHdrFragment(id=9)
    chains = [
        hop, long_hop, destination, routing, atomic,
        hop / destination, hop / routing / destination, hop / destination / routing / atomic,
        destination / destination / destination,
    ]
    for number, chain in enumerate(chains):
        for way, other in (("forward", "back"), ("back", "forward")):
            port = 41000 + number
            ports = (port, 53) if way == "forward" else (53, port)
            yield ip(6, way) / chain.copy() / UDP(sport=ports[0], dport=ports[1]) / data(40)
        yield ip(6) / chain.copy() / TCP(sport=42000 + number, dport=80, flags="A") / data(10)
        yield ip(6) / chain.copy() / ICMPv6EchoRequest(id=43000 + number, data=b"y" * 16)
    yield ip(6) / hop.copy() / IPv6ExtHdrDestOpt(nh=59, options=[PadN(optdata=bytes(4))])
    yield from security_and_mobility()


def security_and_mobility():
    """Headers that are dissected by protocols of their own."""
    for version in (4, 6):
        # Behind an encrypted payload (ESP) nothing can be read. Over IPv4, authentication is a protocol.
        yield secured(version, 50, data(40))
    udp = UDP(sport=43100, dport=53)
    for version in (4, 6):
        authentication = bytes([17, 4, 0, 0]) + bytes(20)
        yield secured(version, 51, Raw(authentication + transport(version, udp / data(40))))
    options = bytes([51, 0, 1, 4, 0, 0, 0, 0])
    authentication = bytes([6, 4, 0, 0]) + bytes(20)
    tcp = transport(6, TCP(sport=43101, dport=80, flags="A"))
    yield ip(6, nh=0) / Raw(options + authentication + tcp)
    # Mobility without and with something behind it, host identity, shim6.
    for protocol in (135, 139, 140):
        yield ip(6, nh=protocol) / Raw(bytes([59, 1, 1, 0]) + bytes(12))
    yield ip(6, nh=135) / Raw(bytes([17, 1, 1, 0]) + bytes(12) + transport(6, udp / data(40)))


def secured(version, protocol, payload):
    return ip(version, **({"proto": protocol} if version == 4 else {"nh": protocol})) / payload


def transport(version, layers):
    """The bytes behind the IP header."""
    return raw(Ether(raw(ip(version) / layers))[IP if version == 4 else IPv6].payload)


def ipv6_fragments(packet, size, identification):
    """Scapy's own function wants a Fragment header in the packet."""
    payload = raw(packet[IPv6].payload)
    protocol = packet[IPv6].nh
    for start in range(0, len(payload), size):
        header = IPv6ExtHdrFragment(
            nh=protocol, offset=start // 8, id=identification, m=int(start + size < len(payload))
        )
        yield ip(6, nh=44) / header / Raw(payload[start:start + size])


def fragments():
    for number in range(4):
        whole = ip(4, id=100 + number) / UDP(sport=44000 + number, dport=5000) / data(2000)
        parts = fragment(whole, fragsize=600)
        yield from parts
        whole = Ether(raw(ip(6) / UDP(sport=44100 + number, dport=5000) / data(2000)))
        yield from ipv6_fragments(whole, 600, 200 + number)
    whole = ip(4, id=300, proto=1) / ICMP(type=8, id=5) / data(1500)
    yield from fragment(whole, fragsize=800)
    whole = ip(4, id=301) / TCP(sport=44200, dport=80, flags="A") / data(1400)
    yield from fragment(whole, fragsize=800)
    # The second one comes first, so it is in no flow with ports. The last one is.
    whole = ip(4, id=302) / UDP(sport=44300, dport=5000) / data(2000)
    first, second, *others = fragment(whole, fragsize=600)
    yield from [second, first, *others]
    whole = Ether(raw(ip(6) / UDP(sport=44301, dport=5000) / data(2000)))
    first, second, *others = ipv6_fragments(whole, 600, 302)
    yield from [second, first, *others]


def vlans():
    tags = [
        Dot1Q(vlan=100),
        Dot1Q(vlan=101, prio=5),
        Dot1AD(vlan=200) / Dot1Q(vlan=300),
        Dot1Q(vlan=201) / Dot1Q(vlan=301),
    ]
    for number, tag in enumerate(tags):
        for version in (4, 6):
            for way in ("forward", "back"):
                inner = ip(version, way)
                ports = (45000 + number, 80) if way == "forward" else (80, 45000 + number)
                yield LINK[way] / tag.copy() / inner.payload / TCP(
                    sport=ports[0], dport=ports[1], flags="A"
                ) / data(50)
            inner = ip(version).payload
            yield LINK["forward"] / tag.copy() / inner / UDP(sport=46000 + number, dport=53) / data(20)


def tunnels():
    for number in range(3):
        inner4 = IP(src="192.168.0.1", dst="192.168.0.2") / UDP(sport=47000 + number, dport=53) / data(30)
        inner6 = IPv6(src="fd99::1", dst="fd99::2") / TCP(sport=47000 + number, dport=80) / data(30)
        frame = Ether(src="02:00:00:00:01:01", dst="02:00:00:00:01:02") / inner4
        for outer in (4, 6):
            yield ip(outer) / GRE() / inner4
            yield ip(outer) / GRE(key_present=1, key=7) / inner6
            yield ip(outer) / GRE(proto=0x6558) / frame
            yield ip(outer) / UDP(sport=48000 + number, dport=4789) / VXLAN(vni=42, flags=8) / frame
            # Geneve, without options, Ethernet inside.
            yield ip(outer) / UDP(sport=48100 + number, dport=6081) / Raw(
                bytes([0, 0, 0x65, 0x58, 0, 0, 42, 0]) + raw(frame)
            )
            yield ip(outer) / inner4
            yield ip(outer) / inner6
    yield from more_tunnels()


def more_tunnels():
    """Each way that a header of a tunnel may be written, with both versions outside and inside."""
    number = 0
    for outer, version, is_udp in itertools.product((4, 6), (4, 6), (True, False)):
        kinds = len(tunnels_with(ip(outer), 4, Raw()))
        for kind in range(kinds):
            number += 1
            layer, source, destination = (
                (IP, "192.168.7.1", "192.168.7.2") if version == 4 else (IPv6, "fd77::1", "fd77::2")
            )
            inner = layer(src=source, dst=destination) / (
                UDP(sport=30000 + number, dport=999) / data(20 + number)
                if is_udp
                else TCP(sport=30000 + number, dport=80, flags="S") / data(number)
            )
            yield tunnels_with(ip(outer), version, inner)[kind]


def tunnels_with(outer, version, inner):
    link = Ether(src="02:00:00:00:09:01", dst="02:00:00:00:09:02")
    ethertype = 0x0800 if version == 4 else 0x86DD
    # A critical option of twelve bytes.
    geneve = bytes([4, 0x40, 0x65, 0x58, 0, 0, 42, 0]) + bytes([1, 2, 3, 3]) + bytes(12)
    udp = {port: UDP(sport=5, dport=port) for port in (4789, 6081, 8472)}
    options = IPv6ExtHdrHopByHop(options=[PadN(optdata=bytes(4))])
    return [
        outer / GRE(chksum_present=1, proto=ethertype) / inner,
        outer / GRE(seqnum_present=1, key_present=1, key=9, proto=ethertype) / inner,
        outer / GRE(proto=0x6558) / link / Dot1Q(vlan=55) / inner,
        outer / udp[4789] / VXLAN(vni=99, flags=8) / link / Dot1Q(vlan=55) / inner,
        outer / udp[8472] / VXLAN(vni=99, flags=8) / link / inner,
        outer / udp[6081] / Raw(geneve) / Raw(raw(link / inner)),
        # Two deep.
        outer / IP(src="172.16.0.1", dst="172.16.0.2") / inner,
        outer / IPv6(src="fdaa::1", dst="fdaa::2") / options / inner,
    ]


def encapsulations():
    """What is below IP without being IP: PPPoE sessions and MPLS labels."""

    def labels(*numbers):
        words = [number << 12 | 64 for number in numbers]
        words[-1] |= 1 << 8
        return Raw(b"".join(struct.pack(">I", word) for word in words))

    for number, version in enumerate((4, 6, 4, 6)):
        for way in ("forward", "back"):
            ports = (41200 + number, 53) if way == "forward" else (53, 41200 + number)
            packet = Raw(raw(ip(version, way).payload / UDP(sport=ports[0], dport=ports[1]) / data(40)))
            link = LINK[way]
            protocol = struct.pack(">H", 0x21 if version == 4 else 0x57)
            session = struct.pack(">BBHH", 0x11, 0, 0x0102 + number, 2 + len(packet))
            yield Ether(src=link.src, dst=link.dst, type=0x8864) / Raw(session + protocol) / packet
            for ethertype, stack in ((0x8847, [16]), (0x8847, [16, 17, 18]), (0x8848, [16])):
                yield Ether(src=link.src, dst=link.dst, type=ethertype) / labels(*stack) / packet
            yield link / Dot1Q(vlan=5, type=0x8847) / labels(16, 17) / packet


def icmp_errors():
    cause4 = IP(src=V4[1], dst=V4[0]) / UDP(sport=9, dport=49000) / data(20)
    cause6 = IPv6(src=V6[1], dst=V6[0]) / TCP(sport=9, dport=49001) / data(20)
    for code in (0, 1, 3, 4, 13):
        yield ip(4) / ICMP(type=3, code=code) / cause4
        yield ip(6) / ICMPv6DestUnreach(code=min(code, 6)) / cause6
    yield ip(4) / ICMP(type=11, code=0) / cause4
    yield ip(4) / ICMP(type=5, code=1, gw="10.9.0.254") / cause4
    yield ip(6) / ICMPv6TimeExceeded() / cause6
    yield ip(6) / ICMPv6PacketTooBig(mtu=1280) / cause6
    # Both ways: each host sends errors about the other.
    yield ip(4, "back") / ICMP(type=3, code=1) / cause4


def whole_frames():
    """One of each kind, to be cut or spoilt."""
    return [
        ip(4) / TCP(sport=49100, dport=80, flags="S", options=[("MSS", 1460)]) / data(12),
        ip(4) / UDP(sport=49101, dport=53) / data(12),
        ip(4) / ICMP(type=8, id=49102) / data(12),
        ip(4, options=b"\x94\x04\0\0") / UDP(sport=49103, dport=53) / data(12),
        ip(6) / TCP(sport=49104, dport=80, flags="S") / data(12),
        ip(6) / IPv6ExtHdrHopByHop(options=[RouterAlert()]) / UDP(sport=49105, dport=53) / data(12),
        LINK["forward"] / Dot1Q(vlan=7) / ip(4).payload / UDP(sport=49106, dport=53) / data(12),
    ]


def truncated():
    """Each frame cut at every length that an interface takes."""
    for frame in whole_frames():
        whole = raw(frame)
        for length in range(14, len(whole)):
            yield whole[:length]


def malformed():
    def spoilt(frame, offset, value):
        whole = bytearray(raw(frame))
        whole[offset] = value
        return bytes(whole)

    tcp4, udp4, _, _, tcp6, hop6, _ = whole_frames()
    for first in (0x40, 0x41, 0x44, 0x4F, 0x55, 0x65, 0x05):
        yield spoilt(udp4, 14, first)
    for first in (0x40, 0x50, 0x00, 0x70):
        yield spoilt(tcp6, 14, first)
    # The total length: under the header, between header and transport, past the end.
    for length in (10, 19, 24, 255):
        yield spoilt(udp4, 17, length)
    # The payload length likewise.
    for length in (0, 4, 19, 255):
        yield spoilt(tcp6, 19, length)
    # TCP's data offset.
    for offset in (0x00, 0x10, 0x40, 0xF0):
        yield spoilt(tcp4, 14 + 20 + 12, offset)
    # UDP's length, and a hop-by-hop header that is longer than the packet.
    for length in (0, 7, 255):
        yield spoilt(udp4, 14 + 20 + 5, length)
    yield spoilt(hop6, 14 + 40 + 1, 200)
    # An authentication header of eight bytes, which is too short to be one.
    tcp = transport(6, TCP(sport=49107, dport=80, flags="A"))
    yield ip(6, nh=51) / Raw(bytes([6, 0, 0, 0, 0, 0, 0, 1]) + tcp)
    # Three tags, and an unassigned type.
    yield LINK["forward"] / Dot1Q(vlan=1) / Dot1Q(vlan=2) / Dot1Q(vlan=3) / ip(4).payload / UDP()
    yield LINK["forward"] / ip(4).payload / TCP(sport=1, dport=0) / data(1)
    yield Ether(src=A, dst=B, type=0x88B5) / data(50)


CAPTURES = [
    ordinary, ipv6_extensions, fragments, vlans, encapsulations, tunnels, icmp_errors, truncated,
    malformed,
]


def write(path, frames):
    """A capture of Ethernet frames, a millisecond apart (libpcap's format, little-endian)."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(frames):
            seconds, thousandths = divmod(number, 1000)
            length = len(frame)
            file.write(struct.pack("<IIII", seconds, thousandths * 1000, length, length))
            file.write(frame)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for capture in CAPTURES:
        write(folder / f"{capture.__name__}.pcap", [raw(frame) for frame in capture()])


if __name__ == "__main__":
    main()
