//! A tap device: where the machine's frames leave this host.

use std::ffi::c_char;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;

const DEVICE: &str = "/dev/net/tun";
const IFF_TAP: i16 = 2;
const IFF_NO_PI: i16 = 0x1000;
const NAME_BYTES: usize = 16;

/// What `TUNSETIFF` is given: `struct ifreq`.
#[repr(C)]
struct Request {
    name: [c_char; NAME_BYTES],
    flags: i16,
    rest: [u8; 22],
}

nix::ioctl_write_int!(set_interface, b'T', 202);

/// Opens the device of this name, makes it if there is none, and joins it to a bridge.
///
/// # Errors
/// If it may not: a device that does not exist needs the right to administer the network.
pub fn open(name: &str, bridge: Option<&str>) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE);
    let file = file.map_err(|error| explain(&error, format!("cannot open {DEVICE}")))?;
    let mut request = Request {
        name: [0; NAME_BYTES],
        flags: IFF_TAP | IFF_NO_PI,
        rest: [0; 22],
    };
    if name.is_empty() || name.len() >= NAME_BYTES {
        return Err(io::Error::other(format!(
            "{name:?} is no name of a network device"
        )));
    }
    for (to, from) in request.name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    let address = &raw const request as usize as nix::sys::ioctl::ioctl_param_type;
    // SAFETY: the descriptor is open, and the request is what the call reads, and outlives it.
    unsafe { set_interface(file.as_raw_fd(), address) }
        .map_err(|error| explain(&error.into(), format!("cannot open the tap device {name}")))?;
    if let Some(bridge) = bridge {
        ip(&["link", "set", name, "master", bridge])?;
    }
    ip(&["link", "set", name, "up"])?;
    Ok(file)
}

fn explain(error: &io::Error, what: String) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{what}: {error}; run as root, or make the device for this user (ip tuntap add)"),
    )
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "ip {}: {}",
        arguments.join(" "),
        said.trim()
    )))
}
