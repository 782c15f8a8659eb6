//! Reads messages of IPFIX, one after another in a file, with the crate `netflow_parser`, and prints how many flows they have and what
//! these sum to. `cargo xtask setup` compiles it.

use std::{env, fs};

use netflow_parser::{
    NetflowPacket, NetflowParser,
    variable_versions::ipfix::{FlowSetBody, lookup::IANAIPFixField as Iana, lookup::IPFixField},
};

fn main() {
    let file = env::args().nth(1).expect("a file");
    let mut rest = &fs::read(file).expect("read the file")[..];
    let mut parser = NetflowParser::default();
    let (mut flows, mut packets, mut octets, mut layer2, mut names) = (0, 0, 0, 0, 0);
    while !rest.is_empty() {
        let len = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let (message, after) = rest.split_at(len);
        rest = after;
        let parsed = parser.parse_bytes(message);
        assert!(parsed.error.is_none(), "{:?}", parsed.error);
        for packet in parsed.packets {
            let NetflowPacket::IPFix(ipfix) = packet else {
                panic!("{packet:?}")
            };
            for set in ipfix.flowsets {
                let records = match set.body {
                    FlowSetBody::Data(data) => data.fields,
                    FlowSetBody::OptionsData(data) => {
                        let fields = data.fields.iter().flatten();
                        names += fields
                            .filter(|(field, _)| *field == IPFixField::IANA(Iana::InterfaceName))
                            .count();
                        continue;
                    }
                    FlowSetBody::NoTemplate(_) => panic!("no template for {:?}", set.header),
                    _ => continue,
                };
                for record in records {
                    let sum = |name: &str| -> u64 {
                        let fields = record.iter().filter(|(field, _)| {
                            // `IANA(PacketDeltaCount)`, and that of the reverse.
                            let field = format!("{field:?}").to_lowercase();
                            field.contains(&format!("({name})")) || field.contains(&format!("(reverse{name})"))
                        });
                        let values = fields.map(|(_, value)| value.as_u64().expect("a number"));
                        values.sum()
                    };
                    flows += 1;
                    packets += sum("packetdeltacount");
                    octets += sum("octetdeltacount");
                    layer2 += sum("layer2octetdeltacount");
                }
            }
        }
    }
    println!(
        r#"{{"flows": {flows}, "packets": {packets}, "octets": {octets}, "layer2": {layer2}, "interfaces": {names}}}"#
    );
}
