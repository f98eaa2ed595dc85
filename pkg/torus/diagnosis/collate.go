package diagnosis

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Word is the state that the host half of a node reported.
type Word uint8

// The words. The zero value is none.
const (
	NoWord   Word = iota
	DNPAlive      // it is alive, and so is its DNP half by its watchdog word
	DNPDead       // it is alive, and its DNP half's watchdog word is stale
	DNPOpen       // it is alive, and knows nothing of its DNP half yet
)

// NodeFindings is all that came of one node.
type NodeFindings struct {
	Node grid.Coord
	// DNP: its DNP half answered the order, and Links are its findings.
	DNP   bool
	Links []Finding
	// OwnHost is the test of its own host half by its mailbox.
	OwnHost Test
	// Host is the report of its host half, received by another way than the torus.
	Host Word
}

// Part is a part that can be found dead.
type Part uint8

// The parts.
const (
	PartHost Part = iota + 1 // a host half
	PartDNP                  // a DNP half
	PartNode                 // both halves: dead, or wholly cut off, which from outside is the same
	PartLink                 // a link, the DNP halves at both ends of which live: the cable, or a channel at its ends
)

// String returns "host half", "DNP half", "node" or "link".
func (p Part) String() string {
	switch p {
	case PartHost:
		return "host half"
	case PartDNP:
		return "DNP half"
	case PartNode:
		return "node"
	case PartLink:
		return "link"
	}
	return fmt.Sprintf("Part(%d)", uint8(p))
}

// Found is a part that must be at fault: nothing else explains the findings.
type Found struct {
	Part Part
	Node grid.Coord
	// For a link: its direction at Node, and which of its ways are known to be dead. If only one end reported, a way
	// that is not marked dead may still be dead.
	Dir         grid.Direction
	OutDead     bool // from Node on
	InDead      bool // towards Node
	Explanation string
}

// LinkResult combines both ends' findings on one link.
type LinkResult struct {
	Node grid.Coord     // the end from which Dir leads
	Dir  grid.Direction // positive, except where only the other end was tested
	Peer grid.Coord
	// Here and There are the findings of Node and of Peer; nil: not tested, or not heard of.
	Here, There *Finding
	Verdict     Verdict
	Explanation string // of a verdict other than good
}

// Report is the conclusion from all findings.
type Report struct {
	Found  []Found      // by node, part and direction
	Links  []LinkResult // the links to be tested, by node and direction
	Silent []grid.Coord // nodes of which neither half answered
	// Open lists nodes that have a fault which the findings do not identify.
	Open []Open
}

// Open is a question that the findings leave open.
type Open struct {
	Node        grid.Coord
	Explanation string
}

// Quorum returns how many distinct neighbours must get no answer from a node before it counts as dead. degree is the
// number of its neighbours in the topology. The fault map uses the same number.
func Quorum(degree int) int { return max(2, degree/2+1) }

// Collate draws everything together. Nodes that are not among the findings were not asked.
func Collate(dims grid.Dims, all []NodeFindings) Report {
	c := collation{dims: dims, nodes: map[grid.Coord]*evidence{}}
	for i := range all {
		c.nodes[all[i].Node] = &evidence{said: &all[i]}
	}
	for i := range all {
		c.hear(&all[i])
	}
	for i := range all {
		c.judgeNode(&all[i])
	}
	for i := range all {
		if n := &all[i]; !n.DNP && n.Host == NoWord {
			c.report.Silent = append(c.report.Silent, n.Node)
		}
	}
	c.judgeLinks(all)
	c.sort()
	return c.report
}

// evidence collects the reports of a node and of its neighbours about that node.
type evidence struct {
	said *NodeFindings // nil: it was not asked

	dnpLives  bool // its DNP half answered something, or a neighbour received its frames
	hostLives bool // so its host half

	witnesses   int // distinct neighbours to which nothing of it comes by any link, all of them tested
	contradicts int // distinct neighbours that heard something of it
	hostSilent  int // words that its host half does not answer where its DNP half does
	altered     int // links by which only probes that it passed on came back altered

	dnpDead, nodeDead bool // found so
}

type collation struct {
	dims   grid.Dims
	nodes  map[grid.Coord]*evidence
	report Report
}

func (c *collation) at(n grid.Coord) *evidence {
	e := c.nodes[n]
	if e == nil {
		e = &evidence{}
		c.nodes[n] = e
	}
	return e
}

// hear notes a node's report about itself and its neighbours.
func (c *collation) hear(n *NodeFindings) {
	self := c.at(n.Node)
	self.hostLives = self.hostLives || n.Host != NoWord
	if !n.DNP {
		return
	}
	self.dnpLives = true
	switch {
	case n.OwnHost.Answered > 0:
		self.hostLives = true
	case n.OwnHost.Sent >= hostProbes:
		self.hostSilent++
	}
	for _, to := range c.dims.Neighbours(n.Node) {
		c.hearOf(n, to)
	}
}

// hearOf notes a node's findings about one neighbour, by all the links between the two.
func (c *collation) hearOf(n *NodeFindings, to grid.Coord) {
	e, links := c.at(to), c.dims.LinksTo(n.Node, to)
	tested, nothing := 0, 0
	for _, d := range links {
		f := n.finding(d)
		if f == nil {
			continue
		}
		tested++
		switch {
		case f.DNP.Answered+f.Host.Answered > 0, f.Through.Answered > 0:
			e.dnpLives = true
		case f.Heard == 0:
			nothing++
		default:
			e.dnpLives = true // its frames are authentic, even if ours were lost
		}
		if f.Host.Answered > 0 {
			e.hostLives = true
		}
		if f.hostSilent() {
			e.hostSilent++
		}
		if !f.corrupt() && f.Host.Altered+f.Through.Altered > 0 {
			e.altered++
		}
	}
	switch {
	case tested == 0:
	case nothing == len(links):
		e.witnesses++
	case nothing < tested:
		e.contradicts++
	}
}

func (n *NodeFindings) finding(d grid.Direction) *Finding {
	i := slices.IndexFunc(n.Links, func(f Finding) bool { return f.Dir == d })
	if i < 0 {
		return nil
	}
	return &n.Links[i]
}

// judgeNode says which halves of a node are dead.
func (c *collation) judgeNode(n *NodeFindings) {
	e := c.nodes[n.Node]
	degree := len(c.dims.Neighbours(n.Node))
	if e.altered > 0 {
		c.open(n.Node, "probes that it passed on came back altered, over links that alter nothing else: either of its halves, or a "+
			"part behind it")
	}
	switch {
	case e.dnpLives && e.hostLives:
	case e.dnpLives && e.hostSilent > 0:
		c.found(Found{Part: PartHost, Node: n.Node, Explanation: "the DNP half lives, and the host half answers neither there nor on the " +
			"service network"})
	case e.dnpLives:
		c.open(n.Node, "the host half did not answer on the service network, and no node could test it by its mailbox")
	case n.Host == DNPDead && e.witnesses > 0 && e.contradicts == 0:
		e.dnpDead = true
		c.found(Found{Part: PartDNP, Node: n.Node, Explanation: fmt.Sprintf(
			"the host half says that its DNP half's watchdog word is stale, and to %s nothing of it comes", neighbours(e.witnesses))})
	case n.Host == NoWord && e.witnesses >= Quorum(degree) && e.contradicts == 0:
		e.nodeDead = true
		c.found(Found{Part: PartNode, Node: n.Node, Explanation: fmt.Sprintf(
			"neither half answers, and to %s of %d nothing of it comes: dead, or wholly cut off", neighbours(e.witnesses), degree)})
	case n.Host != NoWord:
		c.open(n.Node, "the host half lives and its DNP half did not answer: the DNP half, or all its links")
	default:
		c.open(n.Node, "neither half answered, and too few neighbours can tell why")
	}
}

func neighbours(n int) string {
	if n == 1 {
		return "1 neighbour"
	}
	return fmt.Sprintf("%d neighbours", n)
}

func (c *collation) found(f Found) { c.report.Found = append(c.report.Found, f) }

func (c *collation) open(n grid.Coord, why string) {
	c.report.Open = append(c.report.Open, Open{n, why})
}

// judgeLinks judges each link that either end tested.
func (c *collation) judgeLinks(all []NodeFindings) {
	type end struct {
		node grid.Coord
		dir  grid.Direction
	}
	done := map[end]bool{}
	for i := range all {
		n := &all[i]
		if !n.DNP {
			continue
		}
		for j := range n.Links {
			here := end{n.Node, n.Links[j].Dir}
			peer, ok := c.dims.Neighbour(here.node, here.dir)
			if !ok {
				continue
			}
			there := end{peer, here.dir.Opposite()}
			if !here.dir.Positive() {
				here, there = there, here
			}
			if !done[here] {
				done[here] = true
				c.judgeLink(LinkResult{
					Node: here.node, Dir: here.dir, Peer: there.node, Here: c.findingOf(here.node, here.dir), There: c.findingOf(there.node, there.dir),
				})
			}
		}
	}
}

func (c *collation) findingOf(n grid.Coord, d grid.Direction) *Finding {
	if e := c.nodes[n]; e != nil && e.said != nil && e.said.DNP {
		return e.said.finding(d)
	}
	return nil
}

func (c *collation) judgeLink(l LinkResult) {
	here, there := c.nodes[l.Node], c.nodes[l.Peer]
	switch {
	case l.Here != nil && l.Here.works() || l.There != nil && l.There.works():
		l.Verdict, l.Explanation = c.working(l)
	case here.dead() || there.dead():
		l.Verdict, l.Explanation = NothingAnswers, "explained by a dead part at its end"
	case here.dnpLives && there.dnpLives:
		l = c.deadLink(l)
	default:
		l.Verdict, l.Explanation = NothingAnswers, "the DNP half at the other end, or the link: no other witness answered"
	}
	c.report.Links = append(c.report.Links, l)
}

func (e *evidence) dead() bool { return e.dnpDead || e.nodeDead }

// working judges a link that at least one end found to work. The link is slow only when all reporting ends say so: a
// slow DNP half makes all its links look slow from their other ends.
func (c *collation) working(l LinkResult) (Verdict, string) {
	verdict := Good
	slow, ends := 0, 0
	for _, e := range [...]struct {
		f  *Finding
		at grid.Coord
	}{{l.Here, l.Node}, {l.There, l.Peer}} {
		if e.f == nil {
			continue
		}
		ends++
		switch {
		case e.f.corrupt():
			verdict = max(verdict, Corrupt)
		case e.f.lossy():
			verdict = max(verdict, Lossy)
		case e.f.slow(c.nodes[e.at].said.Links):
			slow++
		}
	}
	if verdict != Good {
		return verdict, measured(l, verdict)
	}
	if slow == ends && slow > 0 {
		return Slow, measured(l, Slow)
	}
	return Good, ""
}

// measured describes the counts of both ends.
func measured(l LinkResult, v Verdict) string {
	var lost, sent, altered, damaged, missed uint32
	var median int64
	for _, f := range [...]*Finding{l.Here, l.There} {
		if f == nil {
			continue
		}
		lost, sent = lost+f.DNP.Lost(), sent+f.DNP.Sent
		altered += f.DNP.Altered
		damaged, missed = damaged+f.Damaged, missed+f.Missed
		median = max(median, f.DNP.Median.Microseconds())
	}
	switch v {
	case Corrupt:
		return fmt.Sprintf("frames damaged: %d, probes altered: %d", damaged, altered)
	case Slow:
		return fmt.Sprintf("median round trip %d µs, far above that of the other links there", median)
	default:
	}
	return fmt.Sprintf("probes lost: %d of %d, frames missing: %d", lost, sent, missed)
}

// deadLink judges a link by which no test is answered, while both DNP halves live. A way is dead when the end that it
// leads to receives no frames, or when that end's frames arrive here but ours are never answered.
func (c *collation) deadLink(l LinkResult) LinkResult {
	outDead, inDead := l.There != nil && l.There.Heard == 0, l.Here != nil && l.Here.Heard == 0
	switch {
	case outDead || inDead:
	case l.Here != nil && l.There == nil:
		outDead = true
	case l.There != nil && l.Here == nil:
		inDead = true
	default:
		l.Verdict, l.Explanation = Inconclusive, "frames come both ways, and no test is answered"
		return l
	}
	l.Verdict = Dead
	switch {
	case outDead && inDead:
		l.Explanation = "dead both ways, and both DNP halves live"
	case l.Here != nil && l.There != nil:
		from, to := l.Node, l.Peer
		if inDead {
			from, to = to, from
		}
		l.Explanation = fmt.Sprintf("dead from %s to %s, and both DNP halves live", from, to)
	default:
		from, to := l.Node, l.Peer
		if inDead {
			from, to = to, from
		}
		l.Explanation = fmt.Sprintf("dead from %s to %s at least, and both DNP halves live; one end was not heard", from, to)
	}
	c.found(Found{Part: PartLink, Node: l.Node, Dir: l.Dir, OutDead: outDead, InDead: inDead, Explanation: l.Explanation})
	return l
}

func (c *collation) sort() {
	rank := c.dims.Rank
	slices.SortFunc(c.report.Found, func(a, b Found) int {
		return cmp.Or(cmp.Compare(rank(a.Node), rank(b.Node)), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Dir, b.Dir))
	})
	slices.SortFunc(c.report.Links, func(a, b LinkResult) int {
		return cmp.Or(cmp.Compare(rank(a.Node), rank(b.Node)), cmp.Compare(a.Dir, b.Dir))
	})
	slices.SortFunc(c.report.Silent, func(a, b grid.Coord) int { return cmp.Compare(rank(a), rank(b)) })
	slices.SortFunc(c.report.Open, func(a, b Open) int { return cmp.Compare(rank(a.Node), rank(b.Node)) })
}
