//! The simplest client that can speak the protocol: one thread, blocking.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dax::credentials::{Greeting, Nonce, Proof, Side, VolumeKey};
use dax::error::ErrorKind;
use dax::ids::{BlockKey, Epoch, FileId, Generation, Version, VolumeName};
use dax::storage::{EpochGrant, VolumeSettings};
use dax::wire::{
    BlockWrite, MAX_FRAME_BYTES, PROTOCOL, Request, Response, StoredBlock, checksum, read_frame,
};
use rand::{RngCore, SeedableRng, rngs::SmallRng};

pub(crate) const BLOCK: usize = 4096;

/// A connection to a zone.
pub(crate) struct Client {
    input: BufReader<UnixStream>,
    output: UnixStream,
    next_id: u64,
    pub written: u64,
    pub acked: u64,
    pub refused: Vec<(u64, ErrorKind)>,
    pub fenced: Option<EpochGrant>,
}

pub(crate) fn v(epoch: u32, seq: u64) -> Version {
    Version {
        epoch: Epoch(epoch),
        seq,
    }
}

pub(crate) fn g(epoch: u32, number: u32) -> Generation {
    Generation {
        epoch: Epoch(epoch),
        number,
    }
}

pub(crate) fn key(file: u64, block: u64) -> BlockKey {
    BlockKey::new(FileId(file), block)
}

/// A block's worth of noise that depends on its version.
pub(crate) fn data(version: Version) -> Bytes {
    let mut data = vec![0; BLOCK];
    let seed = version.seq << 8 | u64::from(version.epoch.0);
    SmallRng::seed_from_u64(seed).fill_bytes(&mut data);
    data.into()
}

pub(crate) fn write(key: BlockKey, generation: Generation, version: Version) -> BlockWrite {
    let data = data(version);
    BlockWrite {
        epoch: version.epoch,
        key,
        generation,
        version,
        checksum: checksum(key, generation, version, &data),
        base: None,
        data,
    }
}

pub(crate) fn settings() -> VolumeSettings {
    VolumeSettings {
        block_size_bytes: BLOCK as u32,
        ..VolumeSettings::default()
    }
}

impl Client {
    /// Connects without saying anything.
    pub fn silent(address: &str) -> Client {
        let path = address.strip_prefix("unix:").unwrap();
        let output = UnixStream::connect(path).unwrap();
        output
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Client {
            input: BufReader::new(output.try_clone().unwrap()),
            output,
            next_id: 1 << 32,
            written: 0,
            acked: 0,
            refused: Vec::new(),
            fenced: None,
        }
    }

    /// Connects to `volume`, creating it.
    pub fn volume(address: &str, volume: &str) -> Client {
        Client::volume_from(address, volume, None)
    }

    /// The same, from a zone.
    pub fn volume_from(address: &str, volume: &str, zone: Option<&str>) -> Client {
        let mut client = Client::silent(address);
        let hello = client.hello_from(volume, zone, Nonce([3; 32]));
        if matches!(hello, Response::NoVolume { .. }) {
            assert_eq!(client.create(volume), Response::Done);
            let hello = client.hello_from(volume, zone, Nonce([4; 32]));
            assert!(matches!(hello, Response::Welcome { .. }), "{hello:?}");
        }
        client
    }

    pub fn hello(&mut self, volume: &str, nonce: Nonce) -> Response {
        self.hello_from(volume, None, nonce)
    }

    fn hello_from(&mut self, volume: &str, zone: Option<&str>, nonce: Nonce) -> Response {
        self.hello_as(PROTOCOL, volume, zone, nonce)
    }

    /// Says hello as a program that speaks `protocol`.
    pub fn hello_as(
        &mut self,
        protocol: u16,
        volume: &str,
        zone: Option<&str>,
        nonce: Nonce,
    ) -> Response {
        self.ask(Request::Hello {
            protocol,
            volume: VolumeName::new(volume).unwrap(),
            client: "test".into(),
            zone: zone.map(str::to_owned),
            nonce,
        })
    }

    /// Says hello and proves to know `key`; gives what the zone answers to that.
    pub fn prove(&mut self, volume: &str, key: &VolumeKey) -> Response {
        let client = Nonce([5; 32]);
        let (greeting, proof) = self.challenged(volume, client);
        assert!(key.is_proven(Side::Zone, &greeting, &proof));
        let proof = key.proof(Side::Client, &greeting);
        self.ask(Request::Proof { proof })
    }

    /// Says hello; gives what the proofs are about, and the zone's.
    pub fn challenged(&mut self, volume: &str, client: Nonce) -> (Greeting, Proof) {
        let Response::Challenge { nonce: zone, proof } = self.hello(volume, client) else {
            panic!("the zone asks for no proof");
        };
        let volume = VolumeName::new(volume).unwrap();
        let greeting = Greeting {
            volume,
            client,
            zone,
        };
        (greeting, proof)
    }

    pub fn create(&mut self, volume: &str) -> Response {
        self.ask(Request::CreateVolume {
            volume: VolumeName::new(volume).unwrap(),
            settings: settings(),
            rebuild: false,
            membership: None,
        })
    }

    /// The same, owning `epoch`.
    pub fn owner(address: &str, volume: &str, epoch: u32) -> Client {
        let mut client = Client::volume(address, volume);
        assert!(client.own(epoch, "owner/1"));
        client
    }

    pub fn send(&mut self, id: u64, request: &Request) {
        self.try_send(id, request).unwrap();
    }

    pub fn try_send(&mut self, id: u64, request: &Request) -> std::io::Result<()> {
        let frame = request.encode(id, &mut BytesMut::new());
        self.output.write_all(&frame.parts().concat())
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.output.write_all(bytes)
    }

    /// The next message, pushes taken note of.
    pub fn receive(&mut self) -> (u64, Response) {
        let frame = read_frame(&mut self.input, MAX_FRAME_BYTES).unwrap();
        let (id, response) = Response::decode(frame.expect("the zone hung up")).unwrap();
        match &response {
            Response::Ack { upto, .. } => {
                assert!(*upto > self.acked, "acks go up");
                self.acked = *upto;
            }
            Response::WriteRefused { number, kind, .. } => {
                assert!(*number > self.acked, "refusals precede their ack");
                self.refused.push((*number, *kind));
            }
            Response::Fenced { grant } => self.fenced = Some(grant.clone()),
            _ => {}
        }
        (id, response)
    }

    /// Waits for answers no longer than this.
    pub fn give_up_after(&self, timeout: Duration) {
        self.output.set_read_timeout(Some(timeout)).unwrap();
    }

    /// Waits no longer than this until the zone takes what is sent.
    pub fn give_up_sending_after(&self, timeout: Duration) {
        self.output.set_write_timeout(Some(timeout)).unwrap();
    }

    /// The next message, if one begins to come in time.
    pub fn try_receive(&mut self) -> Option<(u64, Response)> {
        let waiting = self.input.fill_buf().map(<[u8]>::len);
        waiting.is_ok().then(|| self.receive())
    }

    /// True if the zone hangs up, after whatever it still says.
    pub fn is_hung_up(&mut self) -> bool {
        let mut rest = Vec::new();
        let closed = self.input.read_to_end(&mut rest);
        closed.is_ok() || closed.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset
    }

    /// Sends a request and waits for its reply.
    pub fn ask(&mut self, request: Request) -> Response {
        self.next_id += 1;
        let id = self.next_id;
        self.send(id, &request);
        loop {
            if let (got, response) = self.receive()
                && got == id
            {
                return response;
            }
        }
    }

    pub fn own(&mut self, epoch: u32, owner: &str) -> bool {
        let own = Request::OwnEpoch {
            epoch: Epoch(epoch),
            owner: owner.into(),
            settled: false,
        };
        match self.ask(own) {
            Response::Owned { accepted, .. } => accepted,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a write; returns its number.
    pub fn write(&mut self, write: BlockWrite) -> u64 {
        self.written += 1;
        self.send(self.written, &Request::Write(write));
        self.written
    }

    /// Asks for a commit and waits until everything written is acknowledged.
    pub fn flush(&mut self) {
        self.send(0, &Request::Flush);
        self.wait_acked();
    }

    pub fn wait_acked(&mut self) {
        while self.acked < self.written {
            self.receive();
        }
    }

    pub fn read(&mut self, key: BlockKey, up_to: Generation) -> Response {
        self.ask(Request::Read { key, up_to })
    }

    /// Reads a block that must be intact if it is there.
    pub fn block(&mut self, key: BlockKey, up_to: Generation) -> Option<StoredBlock> {
        match self.read(key, up_to) {
            Response::Block(block) => {
                assert!(block.as_ref().is_none_or(|b| b.is_intact(key)));
                block
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn version(&mut self, key: BlockKey, up_to: Generation) -> Option<Version> {
        self.block(key, up_to).map(|block| block.version)
    }

    pub fn used_blocks(&mut self) -> u64 {
        match self.ask(Request::Space) {
            Response::Space(space) => space.used_bytes / BLOCK as u64,
            other => panic!("{other:?}"),
        }
    }
}

/// What kind of error an answer is.
pub(crate) fn kind(response: &Response) -> Option<ErrorKind> {
    match response {
        Response::Error { kind, .. } => Some(*kind),
        _ => None,
    }
}
