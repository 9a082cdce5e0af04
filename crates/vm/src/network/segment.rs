//! TCP segments in Ethernet frames: just enough to follow connections, and to make segments without contents.

use serde::{Deserialize, Serialize};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

const ETHERNET_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
const IPV4: [u8; 2] = [8, 0];
const TCP: u8 = 6;
const ICMP: u8 = 1;
/// Of ICMP: the host cannot be reached.
const UNREACHABLE: [u8; 2] = [3, 1];
/// What ICMP quotes of a segment: ports and number.
const QUOTED_BYTES: usize = 8;

/// An end of a connection, as frames name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct End {
    mac: [u8; 6],
    ip: [u8; 4],
    pub port: u16,
}

/// A segment of IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    pub from: End,
    pub to: End,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub payload: &'a [u8],
}

fn two(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn four(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl<'a> Segment<'a> {
    /// What a frame has; `None` if it is something else, or a fragment.
    pub fn parse(frame: &'a [u8]) -> Option<Segment<'a>> {
        let packet = frame.get(ETHERNET_BYTES..)?;
        if frame[12..14] != IPV4
            || packet.len() < IP_BYTES
            || packet[0] >> 4 != 4
            || packet[9] != TCP
        {
            return None;
        }
        let header = usize::from(packet[0] & 15) * 4;
        let is_fragment = two(&packet[6..]) & 0x3fff != 0;
        let tcp = packet.get(header..usize::from(two(&packet[2..])))?;
        if is_fragment || header < IP_BYTES || tcp.len() < TCP_BYTES {
            return None;
        }
        let payload = tcp.get(usize::from(tcp[12] >> 4) * 4..)?;
        let end = |mac: usize, ip: usize, port: usize| End {
            mac: *frame[mac..].first_chunk().expect("it has a header"),
            ip: *packet[ip..].first_chunk().expect("it has a header"),
            port: two(&tcp[port..]),
        };
        Some(Segment {
            from: end(6, 12, 0),
            to: end(0, 16, 2),
            seq: four(&tcp[4..]),
            ack: four(&tcp[8..]),
            flags: tcp[13],
            payload,
        })
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The number after the last one that it takes.
    pub fn end(&self) -> u32 {
        let marks = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.seq
            .wrapping_add(self.payload.len() as u32)
            .wrapping_add(marks)
    }

    /// A frame of it.
    pub fn build(&self) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(TCP_BYTES + self.payload.len());
        tcp.extend(self.from.port.to_be_bytes());
        tcp.extend(self.to.port.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(TCP_BYTES as u8 / 4) << 4, self.flags, 4, 0, 0, 0, 0, 0]);
        tcp.extend_from_slice(self.payload);
        let length = (tcp.len() as u16).to_be_bytes();
        let pseudo = [&self.from.ip[..], &self.to.ip, &[0, TCP], &length].concat();
        let sum = checksum(&[&pseudo, &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());

        let ip = ip_header(&self.from, &self.to, TCP, tcp.len());
        [&self.to.mac[..], &self.from.mac, &IPV4, &ip, &tcp].concat()
    }

    /// The frame that tells who sent this that it did not arrive.
    pub fn unreachable(&self) -> Vec<u8> {
        let frame = self.build();
        let quoted = &frame[ETHERNET_BYTES..][..IP_BYTES + QUOTED_BYTES];
        let mut icmp = [&UNREACHABLE[..], &[0; 6], quoted].concat();
        let sum = checksum(&[&icmp]);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let ip = ip_header(&self.to, &self.from, ICMP, icmp.len());
        [&self.from.mac[..], &self.to.mac, &IPV4, &ip, &icmp].concat()
    }
}

fn ip_header(from: &End, to: &End, protocol: u8, bytes: usize) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend(((IP_BYTES + bytes) as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend(from.ip);
    ip.extend(to.ip);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip
}

/// The sum of the internet's protocols; every part but the last has an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
pub fn end(last: u8, port: u16) -> End {
    End {
        mac: [2, 0, 0, 0, 0, last],
        ip: [10, 0, 0, last],
        port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_is_told_which_segment_did_not_arrive() {
        let segment = Segment {
            from: end(2, 40_000),
            to: end(1, 5432),
            seq: 0x0102_0304,
            ack: 0,
            flags: ACK,
            payload: &[],
        };
        let frame = segment.unreachable();
        assert_eq!((&frame[..6], frame[23]), (&segment.from.mac[..], ICMP));
        // Both sums come out even, and the addresses are the other way round than in what is quoted.
        assert_eq!(checksum(&[&frame[14..34]]), 0);
        assert_eq!(checksum(&[&frame[34..]]), 0);
        assert_eq!(
            (frame[26..30].to_vec(), frame[30..34].to_vec()),
            (vec![10, 0, 0, 1], vec![10, 0, 0, 2])
        );
        assert_eq!(
            (frame[54..58].to_vec(), frame[58..62].to_vec()),
            (vec![10, 0, 0, 2], vec![10, 0, 0, 1])
        );
        let quoted = [
            &40_000_u16.to_be_bytes()[..],
            &5432_u16.to_be_bytes(),
            &[1, 2, 3, 4],
        ]
        .concat();
        assert_eq!(frame[62..], quoted);
    }

    #[test]
    fn a_segment_is_what_was_built() {
        let segment = Segment {
            from: end(1, 5432),
            to: end(2, 40_000),
            seq: u32::MAX - 1,
            ack: 7,
            flags: ACK | FIN,
            payload: b"odd",
        };
        let frame = segment.build();
        assert_eq!(Segment::parse(&frame), Some(segment));
        assert_eq!(segment.end(), 2);
        // Over a header with its sum, the sum is nothing.
        assert_eq!(checksum(&[&frame[14..34]]), 0);
        let pseudo = [&frame[26..34], &[0, TCP, 0, 23]].concat();
        assert_eq!(checksum(&[&pseudo, &frame[34..]]), 0);
        for len in 0..frame.len() {
            let _ = Segment::parse(&frame[..len]);
        }
    }
}
