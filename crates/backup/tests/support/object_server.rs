//! An S3 server over a directory, for tests.

use std::net::SocketAddr;
use std::path::Path;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Whom it serves.
pub const ACCESS_KEY: &str = "AKIAUNDERSTUDY";
pub const SECRET_KEY: &str = "a/secret+of-a-test";

/// It ends when this is dropped.
pub struct ObjectServer {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl ObjectServer {
    /// Serves the directory, each directory in it as a bucket.
    pub async fn start(directory: &Path) -> ObjectServer {
        let mut service = S3ServiceBuilder::new(FileSystem::new(directory).expect("a directory"));
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it listens");
        let serving = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    // Whoever ends a connection ends it.
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        ObjectServer { address, serving }
    }

    /// The variables by which a program finds it.
    #[allow(dead_code)] // not every test starts programs
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ]
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
