package udplink

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A heartbeat that repeats the peer's known status is only a sign of life. It need not wake the process: it waits in a
// second socket of the same address, which nothing polls, until the owner reads it with ReadQuiet. A classic BPF program
// of the pair (SO_ATTACH_REUSEPORT_CBPF) chooses the socket by the frame's fields. Known sets their values. Every other
// packet goes to the first socket, and the owner handles it at once. Where the kernel refuses the pair, all packets do.
//
//	everything at once ──Known──► following ──another status──► following the new one
//	        ▲                        │
//	        └── another status within changeRest, a flood, or another peer: no Known counts for a while
//
// The kernel delivers an ICMP error to either socket, so watchQuiet waits for the errors of the second one.

const (
	// changeRest is the shortest time between two programs of a link: old frames that somebody replays must not keep the
	// half busy with changing it.
	changeRest = 100 * time.Millisecond
	// quietMost is the number of heartbeats in one ReadQuiet above which they are a flood, and floodQuietRest is the time
	// for which all packets then go to the first socket, where the limits of the link apply. A refused packet counts
	// as a flood, too.
	quietMost      = 16
	floodQuietRest = 5 * time.Second
	// quietReads bounds the calls to the kernel of one ReadQuiet, each for up to atOnce packets.
	quietReads = 16
)

// QuietHandler receives the heartbeats that waited.
type QuietHandler interface {
	// OnQuiet gets a packet from the peer's address as Handler.OnPacket does, and the time for which it has waited in the
	// socket. It reports whether the packet is authentic.
	OnQuiet(dir grid.Direction, b []byte, waited time.Duration) bool
}

// quiet is the second socket of a link.
type quiet struct {
	mu      sync.Mutex
	fd      rawFD
	isOpen  bool
	reading bool // the socket is in use: end closes it, if need be
	known   known
	on      bool      // the program lets heartbeats that repeat known wait
	rest    time.Time // no other program before
	readAt  time.Time // of the last ReadQuiet
	in      *batch
	errors  *os.File // an epoll instance that rings for errors of the socket only
	drops   dropCount
}

// known are the fields that heartbeats without news repeat.
type known struct {
	dir       grid.Direction
	src, dst  grid.Coord
	flags     torus.Flags
	session   uint32
	epoch     fault.Epoch
	dnp, host uint32
}

// rawFD is a descriptor without the Go runtime's poller. It implements the part of syscall.RawConn that sets options.
type rawFD int

// Control implements syscall.RawConn.
func (f rawFD) Control(do func(fd uintptr)) error {
	do(uintptr(f))
	return nil
}

// Read implements syscall.RawConn.
func (f rawFD) Read(func(fd uintptr) bool) error { return unix.EOPNOTSUPP }

// Write implements syscall.RawConn.
func (f rawFD) Write(func(fd uintptr) bool) error { return unix.EOPNOTSUPP }

// Known takes the status of the peer's newest authentic heartbeat. From now on heartbeats with the same status wait for
// ReadQuiet. Frames of other types are ignored.
func (l *Link) Known(now time.Time, f *torus.Frame) {
	if f.Type != torus.TypeHeartbeat {
		return
	}
	k := known{f.Direction, f.Src, f.Dst, f.Flags, f.Session, f.Epoch, f.DNP, f.Host}
	q := &l.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !q.isOpen || q.on && k == q.known:
	case now.Before(q.rest):
		q.off()
	default:
		q.known, q.rest, q.on = k, now.Add(changeRest), true
		q.attach(program(f))
	}
}

// off makes all packets go to the first socket. It runs under the mutex.
func (q *quiet) off() {
	if q.on {
		q.on = false
		q.attach(everythingNow)
	}
}

// attach gives the pair another program. It runs under the mutex.
func (q *quiet) attach(prog []unix.SockFilter) {
	if err := unix.SetsockoptSockFprog(int(q.fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}); err != nil {
		q.shut() // all packets go to the first socket
	}
}

// open makes the pair.
func (q *quiet) open(l *Link) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.tryOpen(l); err != nil {
		q.shut()
		l.log.Info("every heartbeat of this link wakes the half", "err", err)
	}
}

func (q *quiet) tryOpen(l *Link) error {
	family := unix.AF_INET6
	if l.local.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("second socket: %w", err)
	}
	q.fd, q.isOpen = rawFD(fd), true
	var serr error
	if err := l.raw.Control(func(first uintptr) {
		serr = unix.SetsockoptInt(int(first), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); err != nil || serr != nil {
		return fmt.Errorf("share the address: %w", errors.Join(err, serr))
	}
	l.filter(q.fd, l.remote.Load().addr)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("times of arrival: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return fmt.Errorf("only IPv6: %w", err)
		}
	}
	if q.errors, err = errorsOf(fd); err != nil {
		return err
	}
	if err := l.bindOwn(fd); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	q.attach(everythingNow)
	q.in, q.readAt = newBatch(l.cfg.MTU+1), time.Now()
	return nil
}

// errorsOf returns an epoll instance that rings for errors of a socket, and not for packets.
func errorsOf(fd int) (*os.File, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("wait for errors: %w", err)
	}
	err = unix.SetNonblock(ep, true) // for the poller of the Go runtime
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLERR | unix.EPOLLET})
	}
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("wait for errors: %w", err)
	}
	return os.NewFile(uintptr(ep), "errors"), nil
}

// watchQuiet wakes watchErrors for the errors of the second socket, until the link is closed.
func (l *Link) watchQuiet() {
	l.quiet.mu.Lock()
	f := l.quiet.errors
	l.quiet.mu.Unlock()
	if f == nil {
		return
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	var ev unix.EpollEvent
	rings := func(fd uintptr) bool {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&ev)), 1, 0, 0, 0)
		return errno == 0 && n > 0
	}
	for raw.Read(rings) == nil {
		l.look()
	}
}

// ReadQuiet hands over the heartbeats that wait, the oldest first. The owner calls it before each judgement on the
// link's silence, from one goroutine at a time.
func (l *Link) ReadQuiet(now time.Time, h QuietHandler) {
	q := &l.quiet
	if !q.begin() {
		return
	}
	defer q.end()
	packets, refused := 0, false
	for range quietReads {
		n, errno := q.in.read(uintptr(q.fd))
		if errno != 0 {
			if errno != unix.EAGAIN && fromICMP(errno) {
				continue // see watchErrors
			}
			break
		}
		for i := range n {
			waited := min(max(q.in.waited(i, now), 0), now.Sub(q.readAt))
			if b, ok := l.admitted(q.in, i); ok && !h.OnQuiet(l.cfg.Dir, b, waited) {
				refused = true
			}
		}
		if packets += n; n < atOnce {
			break
		}
	}
	if packets > quietMost || refused {
		q.flooded(now)
	}
	q.readAt = now
}

// flooded makes all packets go to the first socket for floodQuietRest.
func (q *quiet) flooded(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isOpen {
		q.off()
		q.rest = now.Add(floodQuietRest)
	}
}

// begin reports whether there is something to read from. The socket stays open until end.
func (q *quiet) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reading = q.isOpen
	return q.reading
}

func (q *quiet) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reading = false
	if !q.isOpen {
		_ = unix.Close(int(q.fd))
	}
}

// newPeer makes all packets of the next peer go to the first socket until its status is known.
func (q *quiet) newPeer(l *Link, addr netip.AddrPort) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isOpen {
		q.off()
		l.filter(q.fd, addr)
	}
}

// with calls do with the second socket, if it is open.
func (q *quiet) with(do func(fd uintptr)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isOpen {
		do(uintptr(q.fd))
	}
}

// dropped returns the number of packets that the kernel dropped at the second socket.
func (q *quiet) dropped() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isOpen { // its descriptor may belong to another socket by now
		return uint64(q.drops.last)
	}
	return q.drops.read(q.fd)
}

func (q *quiet) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut()
}

// shut closes the second socket. It runs under the mutex.
func (q *quiet) shut() {
	if q.errors != nil {
		_ = q.errors.Close()
		q.errors = nil
	}
	if q.isOpen {
		q.drops.read(q.fd)
	}
	if q.isOpen && !q.reading {
		_ = unix.Close(int(q.fd))
	}
	q.isOpen = false
}

// everythingNow is the program that lets nothing wait.
var everythingNow = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

// program returns 1, the second socket, for a heartbeat with the words of f's status, and 0 for all other packets. A
// program of such a pair finds the packet's payload at offset 0.
func program(f *torus.Frame) []unix.SockFilter {
	words := f.StatusWords()
	out := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: torus.HeartbeatSize, Jf: uint8(2*len(words) + 1)},
	}
	for i, w := range words {
		out = append(out, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(w.At)},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: w.Value, Jf: uint8(2*(len(words)-i) - 1)})
	}
	return append(out, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}, everythingNow[0])
}
