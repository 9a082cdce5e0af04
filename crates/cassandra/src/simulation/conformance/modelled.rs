//! The stage of the model.

use super::super::model::{
    Cell, Cluster, Level, Message, Mutation, NodeId, Place, Query, Receiver, Reply, Request, Sent,
    Setup,
};
use super::{Stage, Table};

/// A cluster for each kind of table; the same happens to both.
pub struct Modelled {
    sound: Cluster,
    bare: Cluster,
    cut_off: Vec<NodeId>,
    hints: bool,
    next: u64,
}

impl Modelled {
    pub fn new() -> Modelled {
        let bare = Setup {
            read_repair: false,
            ..Setup::SOUND
        };
        Modelled {
            sound: Cluster::new(Setup::SOUND),
            bare: Cluster::new(bare),
            cut_off: Vec::new(),
            hints: true,
            next: 1,
        }
    }

    fn table(&mut self, table: Table) -> &mut Cluster {
        match table {
            Table::Sound => &mut self.sound,
            Table::Bare => &mut self.bare,
        }
    }

    /// Delivers everything in order, except to nodes that hear nothing; then the coordinator gives up.
    fn run(&mut self, table: Table, via: NodeId, request: Request) -> Reply {
        let id = self.next;
        self.next += 1;
        let hears = |n: &NodeId, cut_off: &[NodeId]| !cut_off.contains(n);
        let (cut_off, hints) = (self.cut_off.clone(), self.hints);
        let cluster = self.table(table);
        let mut replies = Vec::new();
        let mut travelling: Vec<Sent> = vec![(Receiver::Node(via), Message::Request(id, request))];
        let mut expired = false;
        loop {
            while !travelling.is_empty() {
                match travelling.remove(0) {
                    (Receiver::Node(n), message) if hears(&n, &cut_off) => {
                        travelling.extend(cluster.deliver(n, message));
                    }
                    (Receiver::Client, Message::Reply(_, reply)) => replies.push(reply),
                    _ => {}
                }
            }
            if expired {
                break;
            }
            expired = true;
            travelling = cluster.expire(id);
        }
        if !hints {
            cluster.forget_hints();
        }
        replies.swap_remove(0)
    }

    fn write(&mut self, table: Table, place: Place, cell: Cell, level: Level) -> bool {
        let request = Request::Write(Mutation::one(place, cell), level);
        self.run(table, 0, request) == Reply::Written
    }

    fn read(
        &mut self,
        table: Table,
        place: Place,
        level: Level,
        asked: Vec<NodeId>,
    ) -> Option<Cell> {
        let query = Query {
            partition: place.partition,
            from: place.row,
            to: place.row,
            all: false,
        };
        let via = asked[0];
        match self.run(table, via, Request::Read(query, level, asked)) {
            Reply::Rows(rows) => rows.into_iter().next().map(|(_, cell)| cell),
            reply => panic!("{reply:?}"),
        }
    }
}

impl Stage for Modelled {
    fn write_all(&mut self, table: Table, place: Place, cell: Cell) {
        assert!(self.write(table, place, cell, Level::All));
    }

    fn write_quorum(&mut self, table: Table, place: Place, cell: Cell) -> bool {
        self.write(table, place, cell, Level::Quorum)
    }

    fn write_one(&mut self, table: Table, place: Place, cell: Cell) {
        assert!(self.write(table, place, cell, Level::One));
    }

    fn write_late(&mut self, table: Table, place: Place, cell: Cell) {
        // Nobody waits for the answer.
        self.write(table, place, cell, Level::Quorum);
    }

    fn read_quorum(&mut self, via: usize, table: Table, place: Place) -> Option<Cell> {
        self.read(table, place, Level::Quorum, vec![via, (via + 1) % 3])
    }

    fn read_local(&mut self, node: usize, table: Table, place: Place) -> Option<Cell> {
        self.read(table, place, Level::One, vec![node])
    }

    fn cut_off(&mut self, nodes: &[usize]) {
        self.cut_off = nodes.to_vec();
    }

    fn hang(&mut self, nodes: &[usize]) {
        self.cut_off(nodes);
    }

    fn reconnect(&mut self) {
        self.cut_off.clear();
    }

    fn hints(&mut self, on: bool) {
        self.hints = on;
    }

    fn settle(&mut self, _done: &mut dyn FnMut(&mut Self) -> bool) {
        for node in 0..3 {
            for cluster in [&mut self.sound, &mut self.bare] {
                while let Some((Receiver::Node(to), message)) = cluster.next_hint(node) {
                    cluster.deliver(to, message);
                }
            }
        }
    }

    fn kill_and_restart(&mut self, node: usize) {
        for cluster in [&mut self.sound, &mut self.bare] {
            cluster.crash(node);
            cluster.restart(node);
        }
    }
}
