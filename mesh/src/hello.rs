//! The greeting.
//!
//! ```text
//!  connecting side                           listening side
//!  magic, version of the greeting, nonce  ▶
//!                                         ◀  magic, version, nonce, proof
//!  proof of all so far and of its card    ▶
//!  card                                   ▶
//!                                         ◀  its card, or the reason of a refusal
//! ```
//!
//! A proof is an HMAC (SHA-256) with the secret, over both nonces and the side that it is from. In
//! TLS it also covers the channel, so that a third process can't relay proofs between two others.
//! The card is read only after the proof has been verified.

use std::fmt;
use std::io;
use std::sync::Arc;

use ring::hmac;
use tidemill_core::wire::{put_bytes, put_u128, put_u32, take_text, take_u128, take_u32, take_u8};
use tidemill_env::{Addr, Connection, Random};

use crate::tls::{self, Channel};
use crate::{Peer, Settings};

const MAGIC: &[u8; 8] = b"tidemesh";
const GREETING: u8 = 2;
const NONCE: usize = 32;
const PROOF: usize = 32;
/// The maximum bytes of a card, and of a reason.
const CARD_MAX: usize = 4096;

/// The secret that only the processes of a cluster know.
#[derive(Clone)]
pub struct Secret(Arc<hmac::Key>);

impl Secret {
    /// Creates it from bytes that can't be guessed.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The description of a process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Card {
    pub peer: Peer,
    cluster: String,
    app: u128,
    version: u32,
    pub address: Addr,
}

/// The parts of a fingerprint, each with its bits.
const PARTS: [(&str, u128); 3] = [
    ("its tables, streams, handlers or sinks", u128::MAX << 64),
    ("the code of its functions or its Python", 0xFFFF_FFFF << 32),
    ("its number of sources, rows of an epoch, log or store of snapshots", 0xFFFF_FFFF),
];

impl Card {
    pub fn of(settings: &Settings, address: Addr) -> Card {
        let Settings { me, cluster, app, version, .. } = settings;
        Card { peer: *me, cluster: cluster.clone(), app: *app, version: *version, address }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![1];
        put_u32(self.peer.0, &mut out);
        put_u32(self.version, &mut out);
        put_u128(self.app, &mut out);
        put_bytes(self.cluster.as_bytes(), &mut out);
        put_bytes(self.address.to_string().as_bytes(), &mut out);
        out
    }

    fn take(mut input: &[u8]) -> Option<Card> {
        let input = &mut input;
        if take_u8(input)? != 1 {
            return None;
        }
        let (peer, version, app) = (Peer(take_u32(input)?), take_u32(input)?, take_u128(input)?);
        let (cluster, address) = (take_text(input)?.into(), take_text(input)?.parse().ok()?);
        input.is_empty().then_some(Card { peer, cluster, app, version, address })
    }

    /// Returns the reason why the two do not belong together. `who` names the other one.
    fn refuses(&self, other: &Card, who: &str) -> Option<String> {
        if other.version != self.version {
            return Some(format!(
                "{who} speaks version {} of the protocol, not {}: run the same release everywhere",
                other.version, self.version
            ));
        }
        if other.cluster != self.cluster {
            return Some(format!(
                "{who} belongs to cluster '{}', not '{}': give the address of this cluster's \
                 coordinator",
                other.cluster, self.cluster
            ));
        }
        let differs = PARTS.iter().filter(|(_, bits)| (other.app ^ self.app) & bits != 0);
        let differs: Vec<&str> = differs.map(|(name, _)| *name).collect();
        if !differs.is_empty() {
            return Some(format!(
                "{who} runs another program, or has other settings: it differs in {}; start all \
                 processes of a cluster with the same app and Python, number of sources, rows of an \
                 epoch (cluster_epoch_rows_max), log and store of snapshots",
                differs.join(", and in ")
            ));
        }
        (other.peer == self.peer).then(|| format!("{who} has the same number, {}", other.peer.0))
    }
}

/// The reason why a greeting failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The connection broke, or was too slow.
    Broken(io::Error),
    /// One of the two sides refuses the other.
    Refused(String),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Broken(error) => error.fmt(f),
            Failed::Refused(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        tls::failed_in(&error).unwrap_or(Failed::Broken(error))
    }
}

type Stream<'a> = &'a mut (dyn Connection + 'a);

fn nonce(random: &dyn Random) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    for eight in nonce.chunks_exact_mut(8) {
        eight.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    nonce
}

fn begin(random: &dyn Random) -> ([u8; NONCE], Vec<u8>) {
    let nonce = nonce(random);
    let mut out = MAGIC.to_vec();
    out.push(GREETING);
    out.extend_from_slice(&nonce);
    (nonce, out)
}

fn read_beginning(stream: Stream<'_>) -> Result<[u8; NONCE], Failed> {
    let mut found = [0; MAGIC.len() + 1];
    // Only the first byte, because a peer with another protocol may send no more.
    stream.read_exact(&mut found[..1])?;
    if tls::is_tls(found[0]) {
        return Err(Failed::Refused(format!("it speaks TLS: {}", tls::ONLY_ONE_SIDE)));
    }
    stream.read_exact(&mut found[1..])?;
    if &found[..MAGIC.len()] != MAGIC {
        return Err(Failed::Refused("it is not a process of Tidemill".into()));
    }
    if found[MAGIC.len()] != GREETING {
        let what = "it runs another release of Tidemill: run the same release everywhere";
        return Err(Failed::Refused(what.into()));
    }
    let mut nonce = [0; NONCE];
    stream.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// Returns the bytes that a proof covers. `first` is the nonce of the connecting side.
fn proved(
    from: &[u8],
    channel: &Channel,
    first: &[u8; NONCE],
    second: &[u8; NONCE],
    card: &[u8],
) -> Vec<u8> {
    [from, channel, first, second, card].concat()
}

fn send_text(stream: Stream<'_>, status: u8, text: &[u8]) -> io::Result<()> {
    let mut out = vec![status];
    put_bytes(text, &mut out);
    stream.write_all(&out)
}

fn read_bytes(stream: Stream<'_>) -> Result<Vec<u8>, Failed> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > CARD_MAX {
        return Err(Failed::Refused("its description is too long".into()));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

const NOT_A_CARD: &str = "its description is invalid";
const NO_SECRET: &str =
    "it does not know the secret of the cluster: give all processes the same one";

/// Greets the listening side.
pub(crate) fn connect(
    stream: Stream<'_>,
    own: &Card,
    secret: &Secret,
    channel: &Channel,
    random: &dyn Random,
) -> Result<Card, Failed> {
    let (first, greeting) = begin(random);
    stream.write_all(&greeting)?;
    let second = read_beginning(stream)?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof)?;
    let there = proved(b"there", channel, &first, &second, b"");
    if hmac::verify(&secret.0, &there, &proof).is_err() {
        // An invalid proof shows the other side that the secrets differ.
        stream.write_all(&[0; PROOF + 4])?;
        return Err(Failed::Refused(NO_SECRET.into()));
    }
    let card = own.bytes();
    let proof = hmac::sign(&secret.0, &proved(b"comes", channel, &first, &second, &card));
    let mut out = proof.as_ref().to_vec();
    put_bytes(&card, &mut out);
    stream.write_all(&out)?;
    let mut status = [0];
    stream.read_exact(&mut status)?;
    let said = read_bytes(stream)?;
    if status[0] != 1 {
        return Err(Failed::Refused(String::from_utf8_lossy(&said).into_owned()));
    }
    let other = Card::take(&said).ok_or_else(|| Failed::Refused(NOT_A_CARD.into()))?;
    match own.refuses(&other, "the listening process") {
        Some(why) => Err(Failed::Refused(why)),
        None => Ok(other),
    }
}

/// Greets the connecting side.
pub(crate) fn receive(
    stream: Stream<'_>,
    own: &Card,
    secret: &Secret,
    channel: &Channel,
    random: &dyn Random,
) -> Result<Card, Failed> {
    let first = match read_beginning(stream) {
        Err(refused @ Failed::Refused(_)) => {
            // The connecting side needs the greeting to recognize this side.
            stream.write_all(&begin(random).1)?;
            return Err(refused);
        }
        first => first?,
    };
    let (second, mut greeting) = begin(random);
    let proof = hmac::sign(&secret.0, &proved(b"there", channel, &first, &second, b""));
    greeting.extend_from_slice(proof.as_ref());
    stream.write_all(&greeting)?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof)?;
    let card = read_bytes(stream)?;
    let comes = proved(b"comes", channel, &first, &second, &card);
    if hmac::verify(&secret.0, &comes, &proof).is_err() {
        return Err(Failed::Refused(NO_SECRET.into()));
    }
    let other = Card::take(&card).ok_or_else(|| Failed::Refused(NOT_A_CARD.into()))?;
    match own.refuses(&other, "the connecting process") {
        Some(why) => {
            // The connecting side gets the reason from its own point of view.
            let told = other.refuses(own, "the listening process").unwrap_or_else(|| why.clone());
            send_text(stream, 0, told.as_bytes())?;
            Err(Failed::Refused(why))
        }
        None => {
            send_text(stream, 1, &own.bytes())?;
            Ok(other)
        }
    }
}
