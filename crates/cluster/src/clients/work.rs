//! What a client does in its transactions, whatever it is.

use rand::rngs::SmallRng;

/// What clients do: a connection with its statements, and the transactions that it runs.
pub trait Work: Sized + Send + Sync + 'static {
    /// Connects to the one of the hosts of `server` that accepts writes.
    fn open(
        server: &tokio_postgres::Config,
    ) -> impl Future<Output = Result<Self, tokio_postgres::Error>> + Send;

    /// Everything of a client's transaction number `n` but its COMMIT. It writes `(client, n)` into
    /// a ledger. An error says that the transaction is not committed.
    fn prepare_commit(
        &self,
        client: i32,
        n: i64,
        scale: u32,
        random: &mut SmallRng,
    ) -> impl Future<Output = Result<(), tokio_postgres::Error>> + Send;

    /// Commits that. After an error it may be committed or not.
    fn commit(&self) -> impl Future<Output = Result<(), tokio_postgres::Error>> + Send;
}
