//! What a machine consists of, and QEMU's command line for it.
//!
//! Invariant: two machines of equal [`Spec`]s have equal devices at equal places, so that the state of one can be
//! loaded into the other. What differs between hosts (paths, sockets) is nothing that a guest sees.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use supervise::RunAs;

use super::accelerator::Accelerator;

/// Connections for commands: one for any, and those on which a command is always ready (`qmp::Ready`).
const QMP_SOCKETS: usize = 4;

/// A network card's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let wrong = || format!("{text:?} is not an address of a network card");
        let parts: Vec<&str> = text.split(':').collect();
        let mut bytes = [0; 6];
        if parts.len() != bytes.len() {
            return Err(wrong());
        }
        for (byte, part) in bytes.iter_mut().zip(parts) {
            let plain = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16)
                .ok()
                .filter(|_| plain)
                .ok_or_else(wrong)?;
        }
        if bytes[0] & 1 != 0 {
            return Err(format!(
                "{text:?} is the address of a group of network cards"
            ));
        }
        Ok(Mac(bytes))
    }
}

/// What the machine's network card is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// A unix socket on which somebody listens: frames, each after its length in four bytes.
    Stream(PathBuf),
    /// A tap device that exists.
    Tap(String),
    /// QEMU's own network: nothing but connections from this host to these ports of the guest, (host, guest).
    Forwarded(Vec<(u16, u16)>),
}

/// A machine, and where its parts are on this host.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program.
    pub qemu: PathBuf,
    /// What runs the guest's code; the same on both hosts.
    pub accelerator: Accelerator,
    /// Bytes of memory: whole megabytes.
    pub memory: u64,
    /// Processors.
    pub cpus: u32,
    /// The kernel of the guest.
    pub kernel: PathBuf,
    /// Its first file system.
    pub initrd: PathBuf,
    /// What the kernel is told, beside the console.
    pub append: String,
    /// A unix socket on which an NBD server listens: the disk, without a name.
    pub disk: PathBuf,
    /// What its network card is connected to.
    pub network: Network,
    /// The address of that card.
    pub mac: Mac,
    /// A directory of a tmpfs, of this machine alone. It is made, and removed with the machine.
    pub memory_dir: PathBuf,
    /// A directory of this machine alone, for sockets and notes. It is made. Its path is short: it is part of the
    /// names of sockets.
    pub run: PathBuf,
    /// What the guest writes to its serial port is added here.
    pub console: PathBuf,
    /// What QEMU itself prints is added here.
    pub log: PathBuf,
    /// Who QEMU runs as, if not as this process.
    pub run_as: Option<RunAs>,
}

/// Where QEMU's part of a machine's directories is.
impl Spec {
    pub(super) fn memory_file(&self) -> PathBuf {
        self.memory_dir.join("memory")
    }

    pub(super) fn devices_file(&self) -> PathBuf {
        self.memory_dir.join("devices")
    }

    pub(super) fn preload_file(&self) -> PathBuf {
        self.run.join("preload.so")
    }

    pub(super) fn note_file(&self) -> PathBuf {
        self.qemu_dir().join("mapping")
    }

    /// One of [`QMP_SOCKETS`].
    pub(super) fn qmp_socket(&self, number: usize) -> PathBuf {
        self.qemu_dir().join(format!("qmp{number}"))
    }

    pub(super) fn incoming_socket(&self) -> PathBuf {
        self.qemu_dir().join("in")
    }

    /// What QEMU may write into.
    pub(super) fn qemu_dir(&self) -> PathBuf {
        self.run.join("q")
    }

    /// QEMU's arguments. `waiting`: for the state of a machine that runs elsewhere.
    pub(super) fn arguments(&self, waiting: bool) -> Vec<String> {
        let megabytes = self.memory >> 20;
        let mut line = Line::default();
        // The machine's own options first: what it is.
        line.add(
            "-machine",
            format!("pc,accel={},memory-backend=ram", self.accelerator),
        );
        line.add("-cpu", self.accelerator.processor());
        line.add("-smp", self.cpus);
        line.add("-m", format!("{megabytes}M"));
        let file = escaped(&self.memory_file());
        let memory =
            format!("memory-backend-file,id=ram,size={megabytes}M,share=on,mem-path={file}");
        line.add("-object", memory);
        for alone in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            line.alone(alone);
        }
        line.add("-display", "none");
        // The host's clock, which does not stand still when the machine is paused.
        line.add("-rtc", "base=utc,clock=host");
        line.add("-kernel", self.kernel.display());
        line.add("-initrd", self.initrd.display());
        line.add(
            "-append",
            format!("console=ttyS0 quiet reboot=t panic=-1 {}", self.append),
        );
        line.add(
            "-chardev",
            format!("file,id=console,append=on,path={}", escaped(&self.console)),
        );
        line.add("-serial", "chardev:console");
        self.add_disk(&mut line);
        self.add_network(&mut line);
        for number in 0..QMP_SOCKETS {
            let socket = escaped(&self.qmp_socket(number));
            line.add(
                "-chardev",
                format!("socket,id=qmp{number},server=on,wait=off,path={socket}"),
            );
            line.add("-mon", format!("chardev=qmp{number},mode=control"));
        }
        // It needs no program, no other user and no other priority than it has.
        let denied = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
        line.add("-sandbox", denied);
        if waiting {
            line.add("-incoming", "defer");
            // The state of devices alone has no such section.
            line.add("-global", "migration.send-configuration=off");
            line.alone("-S");
        }
        // By the end of this one, processes that are left over are known (`supervise::leftovers`).
        line.add(
            "-name",
            format!("debug-threads=on,guest={}", escaped(&self.run)),
        );
        line.0
    }

    fn add_disk(&self, line: &mut Line) {
        let socket = escaped(&self.disk);
        let server = format!(
            "driver=nbd,node-name=disk,server.type=unix,server.path={socket},cache.direct=on"
        );
        line.add("-blockdev", server);
        // The server's answer to a flush is what it is worth; the guest may ask for it. The guest hears of errors: by default QEMU stops the
        // machine without a word when the host's file system is full.
        let device = "virtio-blk-pci,drive=disk,write-cache=on,addr=4";
        line.add("-device", format!("{device},werror=report,rerror=report"));
    }

    fn add_network(&self, line: &mut Line) {
        let netdev = match &self.network {
            Network::Stream(path) => {
                format!(
                    "stream,id=net,server=off,addr.type=unix,addr.path={}",
                    escaped(path)
                )
            }
            Network::Tap(name) => format!("tap,id=net,ifname={name},script=no,downscript=no"),
            Network::Forwarded(ports) => {
                let forward =
                    |(host, guest): &(u16, u16)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}");
                let ports: String = ports.iter().map(forward).collect();
                format!("user,id=net,restrict=on{ports}")
            }
        };
        line.add("-netdev", netdev);
        // Without a program to start from the network, which is one thing less to be equal.
        let card = format!("virtio-net-pci,netdev=net,mac={},romfile=,addr=3", self.mac);
        line.add("-device", card);
    }
}

#[derive(Default)]
struct Line(Vec<String>);

impl Line {
    fn add(&mut self, option: &str, value: impl fmt::Display) {
        self.0.extend([option.to_owned(), value.to_string()]);
    }

    fn alone(&mut self, option: &str) {
        self.0.push(option.to_owned());
    }
}

/// A path within an option: a comma would end it.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn spec(directory: &Path) -> Spec {
        Spec {
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            accelerator: Accelerator::Tcg,
            memory: 256 << 20,
            cpus: 1,
            kernel: directory.join("kernel"),
            initrd: directory.join("initrd"),
            append: String::new(),
            disk: directory.join("nbd"),
            network: Network::Stream(directory.join("net")),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            memory_dir: "/dev/shm/none".into(),
            run: directory.join("run"),
            console: directory.join("console"),
            log: directory.join("log"),
            run_as: None,
        }
    }

    #[test]
    fn a_waiting_machine_has_the_devices_of_the_running_one() {
        let spec = spec(Path::new("/v"));
        let (running, waiting) = (spec.arguments(false), spec.arguments(true));
        let extra = [
            "-incoming",
            "defer",
            "-global",
            "migration.send-configuration=off",
            "-S",
        ];
        let without: Vec<&String> = waiting
            .iter()
            .filter(|word| !extra.contains(&word.as_str()))
            .collect();
        assert_eq!(without, running.iter().collect::<Vec<_>>());
        assert!(running.last().unwrap().ends_with("/v/run"));
    }

    #[test]
    fn a_comma_in_a_path_ends_no_option() {
        let mut spec = spec(Path::new("/v"));
        spec.disk = "/a,readonly=on".into();
        let line = spec.arguments(false).join(" ");
        assert!(line.contains("server.path=/a,,readonly=on,"), "{line}");
    }

    #[test]
    fn addresses_of_network_cards() {
        let mac: Mac = "02:00:5e:00:53:0A".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:00:53:0a");
        for text in [
            "",
            "02:00:5e:00:53",
            "02:00:5e:00:53:0g",
            "02:00:5e:00:53:+a",
            "03:00:5e:00:53:00",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
