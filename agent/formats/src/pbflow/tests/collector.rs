//! What a receiver reads, with the field numbers that netobserv has published.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Records {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Record>,
}

impl Records {
    pub fn read(message: &[u8]) -> Vec<Record> {
        Self::decode(message).unwrap().entries
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct Record {
    #[prost(uint32, tag = "1")]
    pub eth_protocol: u32,
    #[prost(int32, tag = "2")]
    pub direction: i32,
    #[prost(message, optional, tag = "3")]
    pub time_flow_start: Option<Timestamp>,
    #[prost(message, optional, tag = "4")]
    pub time_flow_end: Option<Timestamp>,
    #[prost(message, optional, tag = "6")]
    pub network: Option<Network>,
    #[prost(message, optional, tag = "7")]
    pub transport: Option<Transport>,
    #[prost(uint64, tag = "8")]
    pub bytes: u64,
    #[prost(uint64, tag = "9")]
    pub packets: u64,
    #[prost(string, tag = "10")]
    pub interface: String,
    #[prost(message, optional, tag = "12")]
    pub agent_ip: Option<Ip>,
    #[prost(uint32, tag = "13")]
    pub flags: u32,
    #[prost(uint32, tag = "14")]
    pub icmp_type: u32,
    #[prost(uint32, tag = "15")]
    pub icmp_code: u32,
    #[prost(message, repeated, tag = "26")]
    pub dup_list: Vec<DupMapEntry>,
    #[prost(uint32, tag = "29")]
    pub sampling: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct DupMapEntry {
    #[prost(string, tag = "1")]
    pub interface: String,
    #[prost(int32, tag = "2")]
    pub direction: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Network {
    #[prost(message, optional, tag = "1")]
    pub src_addr: Option<Ip>,
    #[prost(message, optional, tag = "2")]
    pub dst_addr: Option<Ip>,
    #[prost(uint32, tag = "3")]
    pub dscp: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Transport {
    #[prost(uint32, tag = "1")]
    pub src_port: u32,
    #[prost(uint32, tag = "2")]
    pub dst_port: u32,
    #[prost(uint32, tag = "3")]
    pub protocol: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ip {
    #[prost(oneof = "Family", tags = "1, 2")]
    pub family: Option<Family>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Family {
    #[prost(fixed32, tag = "1")]
    V4(u32),
    #[prost(bytes, tag = "2")]
    V6(Vec<u8>),
}

impl Ip {
    /// In network byte order.
    fn bytes(self) -> Vec<u8> {
        match self.family.unwrap() {
            Family::V4(bits) => bits.to_be_bytes().to_vec(),
            Family::V6(bytes) => bytes,
        }
    }
}

/// Address and port.
pub type End = (Vec<u8>, u32);

impl Record {
    pub fn source(&self) -> End {
        let address = self.network.clone().unwrap().src_addr.unwrap();
        (address.bytes(), self.transport.unwrap().src_port)
    }

    pub fn destination(&self) -> End {
        let address = self.network.clone().unwrap().dst_addr.unwrap();
        (address.bytes(), self.transport.unwrap().dst_port)
    }
}
