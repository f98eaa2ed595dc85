// Package gossip is the gossip rail: a memberlist with encryption on, its members' roles and
// addresses as metadata, and a small rate-limited broadcast. It is evidence and transport, never
// the judge: any holder of the key can declare any member dead.
//
// It does not look into the broadcasts that it carries. A broadcast reaches each member at most once as long as its
// hash is remembered, in no order, and may be lost; members of role node pass it on.
package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// KeySize is the length of the shared key in bytes: AES-256.
const KeySize = 32

const (
	queueSize     = 64   // broadcasts waiting to go out; beyond it those sent most often are dropped
	receiveQueue  = 256  // broadcasts waiting for OnBroadcast; beyond it the newest is dropped
	eventQueue    = 4096 // membership events waiting for OnMember; beyond it the oldest is dropped
	rememberedMax = 4096 // hashes of broadcasts seen

	// Own broadcasts: an emergency is a few reports, not a stream. Forwarding has a limit of its own, so that a flood
	// from one member does not go round forever.
	ownRate, ownBurst     = 20, 40
	relayRate, relayBurst = 100, 200

	heardEvery = 100 * time.Millisecond // between two calls of OnHeard, at least

	rejoinInterval = 5 * time.Second // between tries to reach configured members that are not live
	streamTimeout  = 2 * time.Second
	deadTime       = 30 * time.Second // memberlist keeps dead members for so long, at least
)

// ErrRateLimited is returned by Broadcast when the budget is used up. Nothing was queued.
var ErrRateLimited = fmt.Errorf("broadcast budget used up: %w", servicenet.ErrBusy)

// ErrClosed is returned after Close.
var ErrClosed = fmt.Errorf("gossip member: %w", servicenet.ErrClosed)

// EventKind is the kind of a member's change.
type EventKind uint8

// The kinds of events.
const (
	EventJoin   EventKind = iota + 1
	EventLeave            // it said goodbye
	EventUpdate           // its metadata changed
	EventFail             // memberlist holds it for dead
)

var eventNames = [...]string{"", "JOIN", "LEAVE", "UPDATE", "FAIL"}

func (k EventKind) String() string {
	if k == 0 || int(k) >= len(eventNames) {
		return fmt.Sprintf("EventKind(%d)", uint8(k))
	}
	return eventNames[k]
}

// Member is one member as memberlist sees it.
type Member struct {
	Name string
	Addr netip.AddrPort
	Meta Meta // zero when it could not be read
}

// Event is a change of membership. The member itself is never the subject.
type Event struct {
	Kind   EventKind
	Member Member
}

// Timing sets memberlist's periods; a zero field takes the default, which is cheap: about 25
// wake-ups a second, a failed member noticed within seconds. Quicker detection is the torus' task.
type Timing struct {
	ProbeInterval    time.Duration // 1 s
	ProbeTimeout     time.Duration // 500 ms
	GossipInterval   time.Duration // 100 ms
	PushPullInterval time.Duration // 30 s
	RejoinInterval   time.Duration // 5 s
}

// Config of a member.
type Config struct {
	Name string   // unique among the members
	Bind string   // "ip:port", TCP and UDP; port 0 takes a free one
	Join []string // "ip:port" of some members; tried again for as long as they are not live
	Key  []byte   // KeySize bytes: encrypts the traffic
	// Further keys, KeySize bytes each, by which others may encrypt still or already, while the key is changed.
	Further [][]byte
	Meta    Meta
	Logger  *slog.Logger
	// Admit reports whether the pool may have a member. It must not block. nil: any member.
	Admit func(Member) bool
	// MaxMembers is the number of names that this member keeps, dead ones included: any holder of the key can make up as many as it
	// likes. 0: the constant MaxMembers.
	MaxMembers  int
	OnMember    func(Event)  // may be nil; called from one goroutine, in order
	OnBroadcast func([]byte) // may be nil; called from one goroutine; owns the slice
	// OnHeard is called when a packet came from another member, which has the key: so this service network lives,
	// though no supervisor may answer. It is called at most once per heardEvery, and without news at least as often
	// as probes are answered. A goroutine that does nothing else calls it. May be nil.
	OnHeard func(now time.Time)
	// OnLoop gets the bytes that Loop has sent, as they came back. memberlist's packet goroutine calls it, without memberlist's lock.
	// Another member may forge such a message. OnLoop owns the slice. While it blocks, it delays all packets and Close. May be nil.
	OnLoop func([]byte)
	Timing Timing
	// MaxPackets is the number of packets read per second; 0: all. Beyond it, and a burst of as many again, reading
	// rests, and the kernel drops packets that have no room. Streams are bounded too: see streamRate. A process of real-time
	// class that never rests is killed by its limit (RLIMIT_RTTIME).
	MaxPackets int
	// Strangers is the number of packets per second that are read from all strangers' addresses together: those that
	// are not a member's, not in Join and not this member's own. The kernel drops the rest before they take buffer
	// space from members (pkg/udpguard). With MaxPackets, the kernel also bounds strangers' streams. 0: no address is a stranger's.
	Strangers int
}

// Validate names every bad field at once.
func (c Config) Validate() error {
	var errs []error
	if c.Name == "" || len(c.Name) > maxName {
		errs = append(errs, fmt.Errorf("name: given %q: want 1 to %d bytes", c.Name, maxName))
	}
	if c.MaxMembers < 0 || c.MaxMembers > MaxMembers {
		errs = append(errs, fmt.Errorf("max members: given %d: want at most %d", c.MaxMembers, MaxMembers))
	}
	if _, err := netip.ParseAddrPort(c.Bind); err != nil {
		errs = append(errs, fmt.Errorf("bind: given %q: want ip:port", c.Bind))
	}
	for _, j := range c.Join {
		if _, err := netip.ParseAddrPort(j); err != nil {
			errs = append(errs, fmt.Errorf("join: given %q: want ip:port", j))
		}
	}
	if len(c.Key) != KeySize {
		errs = append(errs, fmt.Errorf("key: given %d bytes: want %d", len(c.Key), KeySize))
	}
	for i, k := range c.Further {
		if len(k) != KeySize {
			errs = append(errs, fmt.Errorf("further[%d]: given %d bytes: want %d", i, len(k), KeySize))
		}
	}
	if err := c.Meta.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("logger: missing"))
	}
	return errors.Join(errs...)
}

// Net is one member. All methods may be called from any goroutine.
type Net struct {
	cfg       Config
	list      *memberlist.Memberlist
	transport *transport
	addr      netip.AddrPort
	self      memberlist.Node // a copy of this member's node, which memberlist rewrites with every announcement
	announces sync.Mutex      // one announcement at a time: see announce

	queue      memberlist.TransmitLimitedQueue
	own, relay *rate.Limiter
	seen       *remembered
	received   chan []byte
	events     *eventLog

	// State that memberlist's goroutines read; they may call back before New has the list.
	meta   atomic.Pointer[[]byte]
	passOn atomic.Bool // role node: supervisors only listen, the replicas have their own ways
	live   atomic.Pointer[memberlist.Memberlist]

	refused   atomic.Pointer[map[string]bool] // names: see Refuse; nil: none
	membersMu sync.Mutex
	members   map[string]Member // live, as told by memberlist under its lock
	names     names             // guarded by membersMu

	heardAt atomic.Int64   // of the last packet for OnHeard, in ns since born
	toTell  chan time.Time // from heard to OnHeard
	born    time.Time
	tickers []Ticker

	closed      atomic.Bool
	handling    sync.RWMutex // NotifyMsg holds it for reading, so that Close can wait for OnLoop
	closing     sync.Once
	metaChanged chan struct{}
	asks        chan int      // see Ask
	joined      chan struct{} // receives when the members' addresses may have changed
	cancel      context.CancelFunc
	wg          sync.WaitGroup

	stats struct {
		broadcast, limited, pruned, received, duplicate, dropped atomic.Uint64
	}
}

// New starts a member and begins to join.
func New(cfg Config) (*Net, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("gossip member %q: %w", cfg.Name, err)
	}
	bind, _ := netip.ParseAddrPort(cfg.Bind) // validated
	meta, err := wireMeta{Meta: cfg.Meta}.encode()
	if err != nil {
		return nil, fmt.Errorf("gossip member %q: %w", cfg.Name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	logger := log.New(newLogWriter(cfg.Logger), "", 0)
	cfg.MaxMembers = cmp.Or(cfg.MaxMembers, MaxMembers)
	g, err := newGuard(cfg.Key, cfg.Further, cfg.MaxMembers)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("gossip member %q: %w", cfg.Name, err)
	}
	tr, err := newTransport(ctx, bind, logger, g, cfg)
	if err != nil {
		cancel()
		if errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), "address already in use") {
			return nil, fmt.Errorf("gossip member %q: listen on %s: another process uses port %d (TCP and UDP are needed): %w",
				cfg.Name, cfg.Bind, bind.Port(), err)
		}
		return nil, fmt.Errorf("gossip member %q: listen on %s: %w", cfg.Name, cfg.Bind, err)
	}
	n := &Net{
		cfg:         cfg,
		transport:   tr,
		addr:        netip.AddrPortFrom(bind.Addr(), tr.port()),
		own:         rate.NewLimiter(ownRate, ownBurst),
		relay:       rate.NewLimiter(relayRate, relayBurst),
		seen:        newRemembered(rememberedMax),
		received:    make(chan []byte, receiveQueue),
		events:      newEventLog(eventQueue),
		members:     make(map[string]Member),
		metaChanged: make(chan struct{}, 1),
		asks:        make(chan int, 1), toTell: make(chan time.Time, 1),
		joined: make(chan struct{}, 1),
		cancel: cancel, born: time.Now(),
	}
	n.heardAt.Store(-int64(heardEvery))
	n.meta.Store(&meta)
	n.passOn.Store(cfg.Meta.Role == RoleNode)
	mc := memberlistConfig(cfg, n, logger)
	// memberlist goes through its members, one in each interval of probes, and then forgets those that were dead for deadTime.
	n.names = names{most: cfg.MaxMembers, keep: deadTime + time.Duration(cfg.MaxMembers)*mc.ProbeInterval, at: make(map[string]time.Time)}
	own, err := advertised(bind.Addr(), cfg.Join)
	if err != nil {
		cancel()
		_ = tr.Shutdown() // the reason is err
		return nil, fmt.Errorf("gossip member %q: %w", cfg.Name, err)
	}
	mc.AdvertiseAddr, mc.AdvertisePort = own.String(), int(n.addr.Port())
	n.queue.RetransmitMult, n.queue.NumNodes = mc.RetransmitMult, n.numNodes
	if n.list, err = memberlist.Create(mc); err != nil {
		cancel()
		_ = tr.Shutdown() // the reason is err
		return nil, fmt.Errorf("gossip member %q: %w", cfg.Name, err)
	}
	n.self = *n.list.LocalNode()
	n.tickers = []Ticker{{time.Now(), mc.ProbeInterval}, {time.Now(), mc.GossipInterval}} // Create has just started them
	n.live.Store(n.list)
	n.wg.Go(func() { n.events.run(ctx, cfg.OnMember) })
	for _, run := range []func(context.Context){n.deliver, n.tellHeard, n.maintain, n.runAsks, n.keepKnown} {
		n.wg.Go(func() { run(ctx) })
	}
	return n, nil
}

func memberlistConfig(cfg Config, n *Net, logger *log.Logger) *memberlist.Config {
	mc := memberlist.DefaultLANConfig()
	mc.Name = cfg.Name
	mc.Transport = n.transport
	mc.EnableCompression = false // signatures and ciphertext do not shrink
	mc.UDPBufferSize = packetSize - sealSize - crcSize
	mc.GossipToTheDeadTime = deadTime
	mc.TCPTimeout = streamTimeout
	mc.DeadNodeReclaimTime = 5 * time.Second // a node may come back on another address
	mc.Delegate = (*delegate)(n)
	mc.Events = (*delegate)(n)
	mc.Alive = (*delegate)(n)
	if cfg.OnHeard != nil {
		mc.Ping = (*delegate)(n)
	}
	mc.Logger = logger
	mc.GossipInterval = 100 * time.Millisecond
	for _, f := range []struct{ to, from *time.Duration }{
		{&mc.ProbeInterval, &cfg.Timing.ProbeInterval},
		{&mc.ProbeTimeout, &cfg.Timing.ProbeTimeout},
		{&mc.GossipInterval, &cfg.Timing.GossipInterval},
		{&mc.PushPullInterval, &cfg.Timing.PushPullInterval},
	} {
		if *f.from > 0 {
			*f.to = *f.from
		}
	}
	// Members that begin at the same moment would speak at the same moments ever after: memberlist puts off the first
	// time, and not the clock.
	mc.GossipInterval += rand.N(mc.GossipInterval / 8)
	return mc
}

// Ticker is a periodic timer. It expires each Period after Made, or a moment before.
type Ticker struct {
	Made   time.Time
	Period time.Duration
}

// Tickers returns memberlist's timers for probes and gossip.
func (n *Net) Tickers() []Ticker { return n.tickers }

// Addr returns the address in use.
func (n *Net) Addr() netip.AddrPort { return n.addr }

// Members returns the live members, this one included, by name.
func (n *Net) Members() []Member {
	out := n.liveMembers()
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// liveMembers returns the live members, this one included, in any order.
func (n *Net) liveMembers() []Member {
	n.membersMu.Lock()
	defer n.membersMu.Unlock()
	return slices.Collect(maps.Values(n.members))
}

func (n *Net) numNodes() int {
	if list := n.live.Load(); list != nil {
		return list.NumMembers()
	}
	return 1
}

// Broadcast queues b for all other members. It never blocks; it fails with ErrRateLimited when
// this member has said too much lately. b is the caller's again on return.
func (n *Net) Broadcast(b []byte) error {
	if len(b) == 0 || len(b) > servicenet.MaxDatagram {
		return sizeError(len(b))
	}
	if n.closed.Load() {
		return ErrClosed
	}
	if !n.own.Allow() {
		n.stats.limited.Add(1)
		return ErrRateLimited
	}
	n.seen.add(b) // others may pass it back
	n.enqueue(slices.Clone(b))
	n.stats.broadcast.Add(1)
	return nil
}

// loopMark begins a packet that a member sends to itself. No envelope begins so.
var loopMark = [...]byte{0, 'L', 'F', 'T'}

// Loop sends b to this member itself, by its own socket and under the key, as all packets go: for its self-test. It
// may be lost. Loop does not wait: without room in the socket it returns an error that wraps servicenet.ErrBusy.
func (n *Net) Loop(b []byte) error {
	if n.closed.Load() {
		return ErrClosed
	}
	if len(b) > servicenet.MaxDatagram-len(loopMark) {
		return sizeError(len(b))
	}
	return n.list.SendBestEffort(&n.self, append(loopMark[:], b...))
}

// enqueue takes ownership of b.
func (n *Net) enqueue(b []byte) {
	n.queue.QueueBroadcast(message(b))
	if over := n.queue.NumQueued() - queueSize; over > 0 {
		n.queue.Prune(queueSize)
		n.stats.pruned.Add(uint64(over))
	}
}

// UpdateMeta changes this member's metadata; the others hear of it soon.
func (n *Net) UpdateMeta(m Meta) error {
	if err := m.Validate(); err != nil {
		return fmt.Errorf("update metadata of %q: %w", n.cfg.Name, err)
	}
	b, err := wireMeta{Meta: m}.encode()
	if err != nil {
		return fmt.Errorf("update metadata of %q: %w", n.cfg.Name, err)
	}
	if n.closed.Load() {
		return ErrClosed
	}
	n.meta.Store(&b)
	n.passOn.Store(m.Role == RoleNode)
	select {
	case n.metaChanged <- struct{}{}:
	default: // an update is under way and will read the newest
	}
	return nil
}

// Blocked reports whether this member's traffic is dropped by fault injection.
func (n *Net) Blocked() bool { return n.transport.blocked.Load() }

// Block drops all of this member's traffic both ways, for fault injection.
func (n *Net) Block(on bool) { n.transport.block(on) }

// announce broadcasts this member's metadata, after any announcement in progress, and waits at most timeout for the broadcast.
// memberlist's UpdateNode reads this member's address without a lock and then writes it, so two concurrent calls would be a data race.
func (n *Net) announce(timeout time.Duration) error {
	n.announces.Lock()
	defer n.announces.Unlock()
	return n.list.UpdateNode(timeout)
}

// Stats counts broadcasts and events.
type Stats struct {
	Broadcast      uint64 // own, queued
	RateLimited    uint64 // own refused, and others' not passed on
	Pruned         uint64 // pushed out of the queue before they were sent often enough
	Received       uint64 // for the first time
	Duplicates     uint64
	ReceiveDropped uint64 // OnBroadcast was too slow
	EventsDropped  uint64 // OnMember was too slow: Members has the truth
	StreamsRefused uint64 // closed for a newer one, because maxStreams were open
	Strangers      uint64 // packets beyond Config.Strangers, dropped unread; the kernel drops most of them uncounted
}

// Stats returns the counters.
func (n *Net) Stats() Stats {
	return Stats{
		Broadcast:      n.stats.broadcast.Load(),
		RateLimited:    n.stats.limited.Load(),
		Pruned:         n.stats.pruned.Load(),
		Received:       n.stats.received.Load(),
		Duplicates:     n.stats.duplicate.Load(),
		ReceiveDropped: n.stats.dropped.Load(),
		EventsDropped:  n.events.droppedCount(),
		StreamsRefused: n.transport.refused.Load(),
		Strangers:      n.transport.strangers(),
	}
}

// Leave says goodbye to the others, waiting for at most the time given. Close must follow.
func (n *Net) Leave(timeout time.Duration) error {
	if n.closed.Load() {
		return ErrClosed
	}
	timeout = max(timeout, time.Second/10) // for memberlist, 0 means no limit
	var errs []error
	if w, err := decodeMeta(*n.meta.Load()); err == nil {
		w.Leaving = true
		if b, err := w.encode(); err == nil {
			n.meta.Store(&b)
			errs = append(errs, n.announce(timeout/2))
		}
	}
	errs = append(errs, n.list.Leave(timeout/2))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("leave gossip as %q: %w", n.cfg.Name, err)
	}
	return nil
}

// Close stops the member. It waits for running callbacks and for its goroutines, except those of unanswered pings, and does not say
// goodbye. No callback runs after Close has returned. A callback must not call Close, which would wait for itself.
func (n *Net) Close() error {
	var err error
	n.closing.Do(func() {
		n.handling.Lock() // memberlist's Shutdown does not wait for a running NotifyMsg
		n.closed.Store(true)
		n.handling.Unlock()
		n.cancel()
		err = n.list.Shutdown()
		n.wg.Wait()
	})
	if err != nil {
		return fmt.Errorf("close gossip member %q: %w", n.cfg.Name, err)
	}
	return nil
}

// deliver hands received broadcasts to the callback.
func (n *Net) deliver(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-n.received:
			if n.cfg.OnBroadcast != nil {
				n.cfg.OnBroadcast(b)
			}
		}
	}
}
