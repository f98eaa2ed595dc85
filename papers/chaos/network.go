package chaos

import (
	"fmt"
	"math"
)

const never = math.MaxInt32

// buffer is a frame or a slot: room for one packet. It has room for another in the cycle free, when the tail of the
// previous one leaves.
type buffer struct {
	pkt   int32 // whose header is in it or on its way into it, committed; -1: none
	ready int32 // cycle from which that header can go on
	free  int32 // while pkt is -1: cycle from which a header may be sent here
}

// Network is a network of Chaos routers in one cycle of its life. Nothing in a cycle allocates.
//
// Channels of a node are numbered 2·dimension for the positive direction and 2·dimension+1 for the negative one; a
// frame has its channel's number (times the lanes). The last frame is the processor's: injection among the input
// frames, ejection among the output frames.
type Network struct {
	cfg                       Config
	dims, nodes, chans, lanes int
	frames, slots             int // frames on each side of a router; slots of a multiqueue
	local                     int // the processor's frame
	now, flits                int32

	coord      []int32   // nodes × dims
	neighbour  []int32   // nodes × chans; -1 at the edge of a mesh
	toward     [][]uint8 // by dimension, then by difference + radix: which of its two directions are profitable, bits 0 and 1
	exists     []uint32  // by node: channels that lead somewhere
	live       []uint32  // by node: channels that carry
	functional []uint32  // by node: the channel mask, the channels that the routing decision uses
	dead       []bool    // nodes without router

	in, out, slot   []buffer // nodes × frames, nodes × slots
	inHeld, outHeld []uint32 // by node: frames with a header
	order           []uint8  // nodes × slots: the taken ones, oldest first
	queued          []uint8  // by node: how many of order
	first           []uint8  // by node: whose turn it is among the input frames
	// nodes × chans: cycle from which a transmission may begin; half-duplex channels use the entry of their negative end's
	// positive channel
	busy []int32
	turn []uint8 // like busy: which end, or lane, sent last
	wake []int32 // by node: nothing can happen in its router before

	dst            []int32 // packets: destination
	list           []uint32
	from           []int8 // channel of arrival, -1 at its source
	born, entered  []int32
	hops, deroutes []int32
	unused         []int32 // stack of packet numbers
	source         sources
	dice           dice
	count          Counters
	lastTail       int32
	dropping       bool
	onDelivery     func(Delivery)
	onMove         func(move) // tests follow the headers by it
}

// Counters are totals since New. Latencies are in cycles, from the packet's making to its tail's leaving for the
// processor.
type Counters struct {
	Offered, Refused       int // packets made; not taken because the source's queue was full
	Injected, Delivered    int
	Misdelivered           int // given to a processor that is not the destination, by DropPackets
	Lost                   int // dimension order and minimal adaptive: no way
	Cleared                int // by DropPackets
	Hops, Deroutes         int // of delivered packets; deroutes are those out of a full multiqueue
	Latency, NetworkCycles int // sums over delivered packets, network: from the injection frame
}

// Delivery is one packet at a processor.
type Delivery struct {
	Node, Dest     int
	Born, Tail     int // cycle it was made in, cycle after which its tail is there
	Hops, Deroutes int
}

// New makes an empty network.
func New(cfg Config) (*Network, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	n := &Network{cfg: cfg, dims: len(cfg.Dims), chans: 2 * len(cfg.Dims), lanes: cfg.lanes(), flits: int32(cfg.Flits), nodes: 1,
		dice: dice{cfg.Seed}}
	for _, k := range cfg.Dims {
		n.nodes *= k
	}
	n.local = n.chans * n.lanes
	n.frames = n.local + 1
	if cfg.Algorithm == Chaotic {
		n.slots = cfg.Multiqueue
	}
	n.layOut()
	n.makeBuffers()
	return n, nil
}

func (n *Network) layOut() {
	n.coord = make([]int32, n.nodes*n.dims)
	n.neighbour = make([]int32, n.nodes*n.chans)
	n.exists = make([]uint32, n.nodes)
	n.live = make([]uint32, n.nodes)
	n.functional = make([]uint32, n.nodes)
	n.dead = make([]bool, n.nodes)
	for r := range n.nodes {
		stride := 1
		for d, k := range n.cfg.Dims {
			x := r / stride % k
			n.coord[r*n.dims+d] = int32(x)
			for s, y := range [2]int{x + 1, x - 1} {
				c := 2*d + s
				if n.cfg.Mesh && (y < 0 || y >= k) {
					n.neighbour[r*n.chans+c] = -1
					continue
				}
				n.neighbour[r*n.chans+c] = int32(r + ((y+k)%k-x)*stride)
				n.exists[r] |= 1 << c
			}
			stride *= k
		}
		n.live[r], n.functional[r] = n.exists[r], n.exists[r]
	}
	n.toward = make([][]uint8, n.dims)
	for d, k := range n.cfg.Dims {
		n.toward[d] = make([]uint8, 2*k+1)
		for diff := -k; diff <= k; diff++ {
			var m uint8
			if ahead := (diff + k) % k; n.cfg.Mesh {
				if diff > 0 {
					m = 1
				} else if diff < 0 {
					m = 2
				}
			} else if ahead != 0 {
				if 2*ahead <= k {
					m |= 1
				}
				if 2*ahead >= k {
					m |= 2
				}
			}
			n.toward[d][diff+k] = m
		}
	}
}

func (n *Network) makeBuffers() {
	empty := func(size int) []buffer {
		b := make([]buffer, size)
		for i := range b {
			b[i].pkt = -1
		}
		return b
	}
	n.in, n.out, n.slot = empty(n.nodes*n.frames), empty(n.nodes*n.frames), empty(n.nodes*n.slots)
	n.inHeld, n.outHeld = make([]uint32, n.nodes), make([]uint32, n.nodes)
	n.order, n.queued, n.first = make([]uint8, n.nodes*n.slots), make([]uint8, n.nodes), make([]uint8, n.nodes)
	n.busy, n.turn, n.wake = make([]int32, n.nodes*n.chans), make([]uint8, n.nodes*n.chans), make([]int32, n.nodes)
	room := n.nodes * n.cfg.BuffersPerRouter()
	n.dst, n.list, n.from = make([]int32, room), make([]uint32, room), make([]int8, room)
	n.born, n.entered = make([]int32, room), make([]int32, room)
	n.hops, n.deroutes = make([]int32, room), make([]int32, room)
	n.unused = make([]int32, room)
	for i := range n.unused {
		n.unused[i] = int32(room - 1 - i)
	}
	n.source = newSources(n.nodes)
}

// Nodes returns the number of nodes.
func (n *Network) Nodes() int { return n.nodes }

// Now is the cycle that the next Step makes.
func (n *Network) Now() int { return int(n.now) }

// Population returns the number of packets in routers: their headers have not left for a processor yet.
func (n *Network) Population() int { return len(n.dst) - len(n.unused) }

// Count returns the counters so far.
func (n *Network) Count() Counters { return n.count }

// OnDelivery calls f for each packet that reaches a processor, from within Step.
func (n *Network) OnDelivery(f func(Delivery)) { n.onDelivery = f }

// Node is the number of the node at x.
func (n *Network) Node(x ...int) int {
	r, stride := 0, 1
	for d, k := range n.cfg.Dims {
		r += (x[d]%k + k) % k * stride
		stride *= k
	}
	return r
}

// Coord is where node r is.
func (n *Network) Coord(r int) []int {
	x := make([]int, n.dims)
	for d := range x {
		x[d] = int(n.coord[r*n.dims+d])
	}
	return x
}

// Neighbour is the node at the other end of channel c of node r; false at the edge of a mesh.
func (n *Network) Neighbour(r, c int) (int, bool) {
	b := n.neighbour[r*n.chans+c]
	return int(b), b >= 0
}

// KillLink cuts channel c of node r, in both directions; a packet that is crossing it arrives. The routers' masks do
// not know before Reconfigure.
func (n *Network) KillLink(r, c int) {
	if b := n.neighbour[r*n.chans+c]; b >= 0 {
		n.live[r] &^= 1 << c
		n.live[b] &^= 1 << (c ^ 1)
	}
}

// KillRandomLinks kills so many links, drawn so that the living nodes stay connected. It never returns if too few
// such links are left.
func (n *Network) KillRandomLinks(links int) {
	for links > 0 {
		r, c := n.dice.below(n.nodes), n.dice.below(n.chans)
		if n.live[r]>>c&1 == 0 {
			continue
		}
		n.KillLink(r, c)
		if b := int(n.neighbour[r*n.chans+c]); !n.Connected(r)[b] {
			n.live[r] |= 1 << c
			n.live[b] |= 1 << (c ^ 1)
			continue
		}
		links--
	}
}

// KillNode ends a router: all its links, its injection, and that anyone draws it as a destination.
func (n *Network) KillNode(r int) {
	n.dead[r] = true
	for c := range n.chans {
		n.KillLink(r, c)
	}
}

// Reconfigure updates each router's mask to the live channels, where Config.Mask is set. The network must be empty,
// as in the paper (§5.2.3.1): the lists of earlier packets used the previous mask.
func (n *Network) Reconfigure() error {
	if p := n.Population(); p > 0 {
		return fmt.Errorf("chaos: reconfigure: %d packets are in the network, must be none", p)
	}
	if n.cfg.Mask {
		copy(n.functional, n.live)
	}
	return nil
}

func (n *Network) profitable(r, dst int) uint32 {
	var m uint32
	at, to := n.coord[r*n.dims:(r+1)*n.dims], n.coord[dst*n.dims:(dst+1)*n.dims]
	for d := range at {
		k := int32(n.cfg.Dims[d])
		m |= uint32(n.toward[d][to[d]-at[d]+k]) << (2 * d)
	}
	return m
}

// channels returns the paper's list of profitable and functional channels, with No Routeback and fast derouting
// (§5.2.3.1). from is the channel of arrival, -1 at the source; r is not dst.
func (n *Network) channels(r, dst, from int) uint32 {
	usable := n.functional[r]
	others := usable
	if n.cfg.NoRouteback && from >= 0 && usable != 1<<from {
		others &^= 1 << from
	}
	list := n.profitable(r, dst) & others
	if list == 0 && n.cfg.FastDeroute {
		list = others
	}
	return list
}

// frameList returns the output frames that a packet for dst may take at r.
func (n *Network) frameList(r, dst, from int) uint32 {
	if r == dst || n.dropping {
		return 1 << n.local
	}
	if n.cfg.Algorithm == Chaotic {
		return n.channels(r, dst, from)
	}
	prof := n.profitable(r, dst)
	// The lowest dimension that is not done; half-way round a ring the positive direction.
	first := prof & -prof & n.functional[r]
	if n.cfg.Algorithm == DimensionOrder {
		return first
	}
	var list uint32
	for m := prof & n.functional[r]; m != 0; m &= m - 1 {
		low := m & -m
		list |= low * low << 1 // frame 2c+1: channel c, adaptive lane
	}
	return list | first*first // frame 2c: the escape
}

// Destined adds to by, for each node, the number of packets in the network that are destined for this node.
func (n *Network) Destined(by []int) {
	for _, side := range [][]buffer{n.in, n.out, n.slot} {
		for i := range side {
			if p := side[i].pkt; p >= 0 {
				by[n.dst[p]]++
			}
		}
	}
}

// Dead reports whether node r has no router.
func (n *Network) Dead(r int) bool { return n.dead[r] }

// Live reports whether channel c of node r carries packets.
func (n *Network) Live(r, c int) bool { return n.live[r]>>c&1 != 0 }

// Wandered is the most hops that a packet in the network has made.
func (n *Network) Wandered() int {
	most := int32(0)
	for _, side := range [][]buffer{n.in, n.out, n.slot} {
		for i := range side {
			if p := side[i].pkt; p >= 0 {
				most = max(most, n.hops[p])
			}
		}
	}
	return int(most)
}
