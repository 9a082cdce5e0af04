//! What must have come before what: a graph over transactions, and cycles in it.
//!
//! Invariant: real time costs one more place for every transaction that ended, not an edge for every pair. A place
//! of that kind leads to whatever began later, and to the next such place.

use std::collections::VecDeque;

/// Why one transaction must have come before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Why {
    /// The other wrote over what it wrote.
    Overwritten,
    /// The other read what it wrote.
    Read,
    /// It read what the other wrote over.
    ReadBefore,
    /// It had ended when the other began.
    RealTime,
}

/// A transaction that must have come before itself: each with the reason why it comes before the next.
pub(crate) type Cycle = Vec<(usize, Why)>;

/// The graph. Places below `transactions` are those.
#[derive(Debug)]
pub(crate) struct Graph {
    transactions: usize,
    edges: Vec<Vec<(usize, Why)>>,
}

impl Graph {
    /// Without any edge.
    pub fn new(transactions: usize) -> Graph {
        Graph {
            transactions,
            edges: vec![Vec::new(); transactions],
        }
    }

    /// One transaction came before another. Nothing comes before itself.
    pub fn add(&mut self, before: usize, after: usize, why: Why) {
        if before != after {
            self.edges[before].push((after, why));
        }
    }

    /// Real time: of each transaction when it began, and when it had ended if somebody was told so.
    pub fn add_real_time(&mut self, times: &[(i64, Option<i64>)]) {
        let begins = times.iter().enumerate().map(|(t, time)| (time.0, false, t));
        let ends = times.iter().enumerate();
        let ends = ends.filter_map(|(t, time)| Some((time.1?, true, t)));
        // In the same moment what begins has not begun after what ends.
        let mut events: Vec<(i64, bool, usize)> = begins.chain(ends).collect();
        events.sort_unstable();
        let mut latest = None;
        for (_, is_end, transaction) in events {
            match (is_end, latest) {
                (false, Some(barrier)) => self.add(barrier, transaction, Why::RealTime),
                (false, None) => {}
                (true, before) => {
                    let barrier = self.edges.len();
                    self.edges.push(Vec::new());
                    self.add(transaction, barrier, Why::RealTime);
                    if let Some(before) = before {
                        self.add(before, barrier, Why::RealTime);
                    }
                    latest = Some(barrier);
                }
            }
        }
    }

    /// A short cycle of every group of transactions that all come before each other.
    pub fn cycles(&self) -> Vec<Cycle> {
        let groups = self.components();
        let groups = groups.iter().filter(|group| group.len() > 1);
        groups.filter_map(|group| self.cycle_in(group)).collect()
    }

    /// The shortest way from a transaction of a group back to itself.
    fn cycle_in(&self, group: &[usize]) -> Option<Cycle> {
        let inside: std::collections::HashSet<usize> = group.iter().copied().collect();
        let start = *group.iter().find(|place| **place < self.transactions)?;
        let mut came: std::collections::HashMap<usize, (usize, Why)> = Default::default();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for &(to, why) in self.edges[at].iter().filter(|(to, _)| inside.contains(to)) {
                if to == start {
                    return Some(self.way_back(start, at, why, &came));
                }
                came.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    (at, why)
                });
            }
        }
        None
    }

    /// The cycle that ends with the edge from `last`, without the places that only stand for time.
    fn way_back(
        &self,
        start: usize,
        last: usize,
        why: Why,
        came: &std::collections::HashMap<usize, (usize, Why)>,
    ) -> Cycle {
        let mut steps = vec![(last, why)];
        while let Some(&(from, why)) = steps
            .last()
            .filter(|(place, _)| *place != start)
            .and_then(|(place, _)| came.get(place))
        {
            steps.push((from, why));
        }
        steps.reverse();
        steps.retain(|(place, _)| *place < self.transactions);
        steps
    }

    /// Strongly connected components (Tarjan), without recursion: chains are as long as the run.
    fn components(&self) -> Vec<Vec<usize>> {
        let mut search = Search {
            index: vec![None; self.edges.len()],
            low: vec![0; self.edges.len()],
            on_stack: vec![false; self.edges.len()],
            stack: Vec::new(),
            next: 0,
            found: Vec::new(),
        };
        for root in 0..self.edges.len() {
            if search.index[root].is_none() {
                self.explore(root, &mut search);
            }
        }
        search.found
    }

    fn explore(&self, root: usize, search: &mut Search) {
        let mut calls = vec![(root, 0)];
        search.enter(root);
        while let Some((at, edge)) = calls.last_mut() {
            let at = *at;
            let next = self.edges[at].get(*edge).map(|(to, _)| *to);
            *edge += 1;
            match next {
                Some(to) => match search.index[to] {
                    None => {
                        search.enter(to);
                        calls.push((to, 0));
                    }
                    Some(index) if search.on_stack[to] => {
                        search.low[at] = search.low[at].min(index);
                    }
                    Some(_) => {}
                },
                None => {
                    calls.pop();
                    search.leave(at);
                    if let Some((parent, _)) = calls.last() {
                        search.low[*parent] = search.low[*parent].min(search.low[at]);
                    }
                }
            }
        }
    }
}

/// How far Tarjan's search is.
struct Search {
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl Search {
    fn enter(&mut self, place: usize) {
        self.index[place] = Some(self.next);
        self.low[place] = self.next;
        self.next += 1;
        self.stack.push(place);
        self.on_stack[place] = true;
    }

    /// All edges of a place were followed.
    fn leave(&mut self, place: usize) {
        if self.index[place] != Some(self.low[place]) {
            return;
        }
        let mut group = Vec::new();
        while let Some(member) = self.stack.pop() {
            self.on_stack[member] = false;
            group.push(member);
            if member == place {
                break;
            }
        }
        self.found.push(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_transactions_is_no_cycle_and_one_edge_back_makes_it_one() {
        let mut graph = Graph::new(3);
        graph.add(0, 1, Why::Overwritten);
        graph.add(1, 2, Why::Read);
        assert!(graph.cycles().is_empty());
        graph.add(2, 0, Why::ReadBefore);
        let mut cycle = graph.cycles().pop().unwrap();
        cycle.sort_by_key(|(t, _)| *t);
        let whole = [(0, Why::Overwritten), (1, Why::Read), (2, Why::ReadBefore)];
        assert_eq!(cycle, whole);
    }

    #[test]
    fn real_time_orders_what_ended_before_what_began_and_nothing_else() {
        let times = [(0, Some(10)), (5, Some(20)), (11, None), (20, Some(30))];
        for (before, after, is_cycle) in [
            (2, 0, true),
            (1, 0, false),
            (3, 0, true),
            // Nobody was told that the third ended, and the fourth began when the second ended.
            (3, 2, false),
            (3, 1, false),
        ] {
            let mut graph = Graph::new(4);
            graph.add_real_time(&times);
            graph.add(before, after, Why::ReadBefore);
            let cycles = graph.cycles();
            assert_eq!(!cycles.is_empty(), is_cycle, "{before} {after}");
            if let Some(cycle) = cycles.first() {
                assert_eq!(cycle.len(), 2, "{cycle:?}");
            }
        }
    }

    #[test]
    fn a_long_run_needs_no_deep_stack() {
        let times: Vec<(i64, Option<i64>)> =
            (0..200_000).map(|t| (2 * t, Some(2 * t + 1))).collect();
        let mut graph = Graph::new(times.len());
        graph.add_real_time(&times);
        assert!(graph.cycles().is_empty());
        graph.add(199_999, 3, Why::Overwritten);
        let cycle = graph.cycles().pop().unwrap();
        assert_eq!(
            cycle.iter().filter(|(_, w)| *w == Why::Overwritten).count(),
            1
        );
    }
}
