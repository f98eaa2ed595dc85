package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var le = binary.LittleEndian

// headPayload returns the head for the owner and for this very file: the head of a file that was copied differs.
func (f *CopyFile) headPayload(file *os.File) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("the file has no inode")
	}
	b := append([]byte{version, byte(f.id.Half)}, f.id.Boot[:]...)
	b = le.AppendUint64(b, st.Dev)
	b = le.AppendUint64(b, st.Ino)
	return append(b, f.id.Node...), nil
}

func (f *CopyFile) setHead(file *os.File) error {
	b, err := f.headPayload(file)
	if err != nil {
		return err
	}
	c := f.lay.head
	if len(b) > c.room() {
		return fmt.Errorf("node %q: %w", f.id.Node, ErrTooLong)
	}
	c.put(c.in(f.cells), sequenceOf(c.in(f.cells))+1, b)
	if at := f.lay.place; f.id.Place != "" {
		if len(f.id.Place) > at.room() {
			return fmt.Errorf("place %q: %w", f.id.Place, ErrTooLong)
		}
		at.put(at.in(f.cells), sequenceOf(at.in(f.cells))+1, []byte(f.id.Place))
	}
	return nil
}

// namePlace adds the place to the copy of an earlier version. The caller holds the mutex.
func (f *CopyFile) namePlace() error {
	if f.id.Place == "" || f.payload(f.lay.place) != nil {
		return nil
	}
	return f.storeLocked(f.lay.place, []byte(f.id.Place))
}

// Place returns the place in the torus, x,y,z, to which the copy belongs. Empty: an earlier version made the copy.
func (f *CopyFile) Place() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.payload(f.lay.place))
}

// checkHead returns the defect of the loaded head, if there is one.
func (f *CopyFile) checkHead(file *os.File) error {
	const bootAt, fileAt, nodeAt = 2, 18, 34
	want, err := f.headPayload(file)
	if err != nil {
		return err
	}
	got := f.payload(f.lay.head)
	switch {
	case len(got) < nodeAt:
		return errors.New("it has no head")
	case got[0] != version:
		return fmt.Errorf("it is of version %d: want %d", got[0], version)
	case got[1] != byte(f.id.Half) || string(got[nodeAt:]) != string(f.id.Node):
		return fmt.Errorf("it is that of the %s half of %s", fault.Half(got[1]), got[nodeAt:])
	case string(got[bootAt:fileAt]) != string(want[bootAt:fileAt]):
		return errors.New("it is of an earlier boot of the machine")
	case string(got) != string(want):
		return errors.New("it was copied from another file")
	}
	if at := f.payload(f.lay.place); at != nil && f.id.Place != "" && string(at) != f.id.Place {
		return fmt.Errorf("it is of place %q: want %s, where this node is now", at, f.id.Place)
	}
	return nil
}

// Numbers holds the numbers that a half must not use twice: its boot epoch, and the numbers in that epoch.
type Numbers struct {
	servicenet.OutboxSnapshot
	List uint32 // of a host half: the number of its jobs' list of nodes
	// Express, of a DNP half, is the number of the last broadcast that it has raised.
	Express uint64
}

// Numbers returns the stored numbers; without them a half cannot resume.
func (f *CopyFile) Numbers() (Numbers, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.payload(f.lay.numbers)
	if len(b) != numbersSize {
		return Numbers{}, false
	}
	return Numbers{
		servicenet.OutboxSnapshot{Epoch: fault.Epoch(le.Uint64(b)), Seq: fault.Seq(le.Uint64(b[8:])),
			Exchange: le.Uint64(b[16:])}, le.Uint32(b[24:]), le.Uint64(b[28:]),
	}, true
}

const numbersSize = 36

// StoreNumbers comes before the numbers are used.
func (f *CopyFile) StoreNumbers(n Numbers) error {
	var b [numbersSize]byte
	le.PutUint64(b[:], uint64(n.Epoch))
	le.PutUint64(b[8:], uint64(n.Seq))
	le.PutUint64(b[16:], n.Exchange)
	le.PutUint32(b[24:], n.List)
	le.PutUint64(b[28:], n.Express)
	return f.store(f.lay.numbers, b[:])
}

// PathSessions returns the stored sessions with the supervisors, in the caller's encoding; nil: none.
func (f *CopyFile) PathSessions() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payload(f.lay.paths)
}

// StorePathSessions keeps at most MaxPathSessions bytes.
func (f *CopyFile) StorePathSessions(b []byte) error { return f.store(f.lay.paths, b) }

// Session is the result of a handshake.
type Session struct {
	ID     uint32
	Tx, Rx [torus.KeySize]byte
}

// session returns the session of a link. It is of use only with its counters: see Link.
func (f *CopyFile) session(d grid.Direction) (Session, bool) {
	b := f.payload(f.lay.sessions[d.Index()])
	if len(b) != sessionSize {
		return Session{}, false
	}
	return Session{le.Uint32(b), [torus.KeySize]byte(b[4:]), [torus.KeySize]byte(b[4+torus.KeySize:])}, true
}

const sessionSize = 4 + 2*torus.KeySize + 8

// SessionAge returns the time since a link's session was stored. A session must be replaced at some time, however
// often its half is started.
func (f *CopyFile) SessionAge(d grid.Direction) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.payload(f.lay.sessions[d.Index()])
	if len(b) != sessionSize {
		return 0
	}
	return time.Duration(max(0, SinceBoot()-int64(le.Uint64(b[sessionSize-8:]))))
}

// StoreSession comes before the first frame of a session.
func (f *CopyFile) StoreSession(d grid.Direction, s Session) error {
	var b [sessionSize]byte
	le.PutUint64(b[sessionSize-8:], uint64(SinceBoot()))
	le.PutUint32(b[:], s.ID)
	copy(b[4:], s.Tx[:])
	copy(b[4+torus.KeySize:], s.Rx[:])
	return f.store(f.lay.sessions[d.Index()], b[:])
}

// Link returns a link's counters, and its session if the counters belong to that session. Without its counters no
// frame may be sealed in a session, since a number must never appear twice under one key. ok reports whether there
// are counters.
func (f *CopyFile) Link(d grid.Direction) (c torus.LinkSnapshot, s Session, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok = decodeCounters(f.payload(f.lay.counters[d.Index()]))
	if !ok {
		return torus.LinkSnapshot{}, Session{}, false
	}
	if s, ok := f.session(d); ok && s.ID == c.TxSession {
		return c, s, true
	}
	return c, Session{}, true
}

// LinkAge returns the time since the half stored a link's counters; 0: never stored.
func (f *CopyFile) LinkAge(d grid.Direction) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.storedAt(d); at != 0 {
		return time.Duration(max(1, SinceBoot()-at))
	}
	return 0
}

func (f *CopyFile) storedAt(d grid.Direction) int64 {
	b := f.payload(f.lay.counters[d.Index()])
	if len(b) != countersSize {
		return 0
	}
	return int64(le.Uint64(b[88:]))
}

// stampEvery is the greatest age of the time stored with counters: reading the clock costs more than storing them.
const stampEvery = 50 * time.Millisecond

// stamp is when counters are stored, not exactly.
type stamp struct {
	asked time.Time
	at    int64
}

func (s *stamp) now() int64 {
	if now := time.Now(); s.asked.IsZero() || now.Sub(s.asked) >= stampEvery {
		s.asked, s.at = now, SinceBoot()
	}
	return s.at
}

// StoreCounters must run before a frame that takes a number leaves, and before one that acknowledges.
func (f *CopyFile) StoreCounters(d grid.Direction, c *torus.LinkSnapshot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.storeCounters(d, c, f.stamp.now())
}

func (f *CopyFile) storeCounters(d grid.Direction, c *torus.LinkSnapshot, at int64) error {
	var b [countersSize]byte
	encodeCounters(&b, c)
	le.PutUint64(b[88:], uint64(at))
	return f.storeLocked(f.lay.counters[d.Index()], b[:])
}

// TakeSeq gives the daemon the number for a frame that it sends in the half's place. It stores the number before it
// returns.
func (f *CopyFile) TakeSeq(d grid.Direction) (seq uint64, c torus.LinkSnapshot, err error) {
	c, _, ok := f.Link(d)
	if !ok {
		return 0, c, fmt.Errorf("link %s of copy %s: %w", d, f.path, ErrCold)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c.TxSeq++
	return c.TxSeq, c, f.storeCounters(d, &c, f.storedAt(d))
}

const countersSize = 96

func encodeCounters(b *[countersSize]byte, c *torus.LinkSnapshot) {
	le.PutUint32(b[0:], c.TxSession)
	le.PutUint32(b[4:], c.RxSession)
	le.PutUint64(b[8:], c.TxSeq)
	le.PutUint64(b[16:], c.Acked)
	le.PutUint64(b[24:], uint64(c.HeardAge))
	le.PutUint32(b[32:], c.Next)
	le.PutUint64(b[40:], uint64(c.PeerEpoch))
	le.PutUint64(b[48:], c.High)
	le.PutUint64(b[56:], c.Replay)
	b[64], b[65] = byte(c.Rx), byte(c.Tx)
	b[66] = flag(c.Silent)<<0 | flag(c.Started)<<1 | flag(c.Awaiting)<<2 | flag(c.Peer.HostDead)<<3 | flag(c.Peer.Hops)<<4 |
		flag(c.Peer.Express)<<5 | flag(c.Peer.Masked)<<6
	le.PutUint32(b[72:], c.Peer.DNP)
	le.PutUint32(b[76:], c.Peer.Host)
	le.PutUint64(b[80:], uint64(c.Peer.Epoch))
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func decodeCounters(b []byte) (torus.LinkSnapshot, bool) {
	if len(b) != countersSize {
		return torus.LinkSnapshot{}, false
	}
	return torus.LinkSnapshot{
		TxSession: le.Uint32(b[0:]), RxSession: le.Uint32(b[4:]), TxSeq: le.Uint64(b[8:]), Acked: le.Uint64(b[16:]),
		HeardAge: durationOf(b[24:]), Next: le.Uint32(b[32:]), PeerEpoch: fault.Epoch(le.Uint64(b[40:])),
		High: le.Uint64(b[48:]), Replay: le.Uint64(b[56:]), Rx: torus.LinkState(b[64]), Tx: torus.LinkState(b[65]),
		Silent: b[66]&1 != 0, Started: b[66]&2 != 0, Awaiting: b[66]&4 != 0,
		Peer: torus.PeerStatus{
			DNP: le.Uint32(b[72:]), Host: le.Uint32(b[76:]), HostDead: b[66]&8 != 0, Hops: b[66]&16 != 0, Express: b[66]&32 != 0,
			Masked: b[66]&64 != 0,
			Epoch:  fault.Epoch(le.Uint64(b[80:])),
		},
	}, true
}

// Hop returns the stored hops of a link; nil: none. The slice belongs to the CopyFile and is valid until the next
// StoreHop there.
func (f *CopyFile) Hop(d grid.Direction) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payload(f.lay.hop[d.Index()])
}

// StoreHop keeps at most MaxHop bytes.
func (f *CopyFile) StoreHop(d grid.Direction, b []byte) error {
	return f.store(f.lay.hop[d.Index()], b)
}

// Baselines returns the stored baselines of the self-test; nil: none. The slice belongs to the CopyFile and is valid
// until the next StoreBaselines.
func (f *CopyFile) Baselines() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payload(f.lay.baselines)
}

// StoreBaselines keeps at most MaxBaselines bytes.
func (f *CopyFile) StoreBaselines(b []byte) error { return f.store(f.lay.baselines, b) }

// Sensors returns the stored states of the sensors; nil: none. The slice belongs to the CopyFile and is valid until the next
// StoreSensors.
func (f *CopyFile) Sensors() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payload(f.lay.sensors)
}

// StoreSensors keeps at most MaxSensors bytes.
func (f *CopyFile) StoreSensors(b []byte) error { return f.store(f.lay.sensors, b) }

// Relay returns the content of slot i, 0 to NumRelay-1; empty: the slot is free. The slice belongs to the CopyFile and is
// valid until the next store there.
func (f *CopyFile) Relay(i int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payload(f.lay.relay[i])
}

// StoreRelay puts 1 to MaxRelay bytes into a slot. Call it before acknowledging the message in them.
func (f *CopyFile) StoreRelay(i int, b []byte) error { return f.store(f.lay.relay[i], b) }

// FreeRelay frees a slot.
func (f *CopyFile) FreeRelay(i int) error { return f.store(f.lay.relay[i], nil) }

// Express returns the content of broadcast place i, 0 to NumExpress-1; empty: the place is free. The slice belongs to
// the CopyFile and is valid until the next store there.
func (f *CopyFile) Express(i int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payload(f.lay.express[i])
}

// StoreExpress puts 1 to MaxExpress bytes into a place, or frees it with none. Call it before acknowledging the
// broadcast.
func (f *CopyFile) StoreExpress(i int, b []byte) error { return f.store(f.lay.express[i], b) }

// ExpressSeen returns the stored record of seen broadcasts; nil: none. The slice belongs to the CopyFile and is valid
// until the next StoreExpressSeen.
func (f *CopyFile) ExpressSeen() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payload(f.lay.seen)
}

// StoreExpressSeen keeps at most MaxExpressSeen bytes.
func (f *CopyFile) StoreExpressSeen(b []byte) error { return f.store(f.lay.seen, b) }
