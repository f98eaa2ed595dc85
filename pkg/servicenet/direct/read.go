package direct

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/pieces"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/udpguard"
)

const (
	// errorBatch bounds the errors taken from the kernel's queue at one look, so that a storm of
	// them does not keep the reader from datagrams.
	errorBatch = 16
	// checkEvery: under a stream of datagrams without a pause, the reader checks for errors, and the buffer, once in so many.
	checkEvery = 64
	// errorGap separates two reported errors of the same destination: one slice of the outbox's time-outs.
	errorGap = 10 * time.Millisecond
	// errorRate bounds the errors passed on per second, over all destinations.
	errorRate, errorBurst = 200, 50
	// destinations bounds the destinations whose last error is remembered.
	destinations = 256
	// refuseRate is the number of strangers' datagrams beyond their budget that are read per second without a pause:
	// datagrams already in the buffer when a flood begins have to be read quickly.
	refuseRate, refuseBurst = 20_000, 4000
	// The reader lets datagrams gather if more than gatherRate arrive per Options.Gather, measured over gatherCount of them.
	gatherRate, gatherCount = 2, 16
	// blindWait separates two checks while the poller refuses to wait: see reader.blind.
	blindWait = 5 * time.Millisecond
)

// pathError is one entry of the kernel's error queue: the error that came back for a datagram to an address.
type pathError struct {
	to    netip.AddrPort
	errno syscall.Errno
	quote []byte // of a refused datagram, for Options.OnRefused; otherwise nil
}

// reader is Run's state: its buffers, and the errors that it passed on lately.
type reader struct {
	s  *Socket
	h  Handler
	ep *endpoint

	receiver
	buf    []byte
	n      int // bytes of the datagram, when got
	got    bool
	sender netip.AddrPort
	err    syscall.Errno // of the receiving call; 0 when there was merely nothing
	errs   []pathError
	look   func(fd uintptr) bool // reads a datagram or errors; false: neither
	try    func(fd uintptr)      // look, with its result in found
	found  bool

	counted time.Time // when the number of datagrams was last a multiple of gatherCount
	count   uint
	crowded bool // datagrams come faster than gatherRate

	reads   uint
	full    bool   // the kernel's buffer has overflowed
	drops   uint32 // the kernel's counter at the last look
	told    map[netip.AddrPort]time.Time
	limiter *rate.Limiter
	joiner  *pieces.Joiner

	strange strangeErrors

	pace   *udpguard.Pace // of delivered datagrams, and errors; nil: no bound
	refuse *udpguard.Pace // of dropped datagrams of strangers
	rest   func(context.Context, time.Duration)
}

// keepPieces is the number of datagrams whose pieces a socket keeps: those of one datagram come within microseconds.
const keepPieces = 256

func newReader(s *Socket, h Handler) *reader {
	r := &reader{
		s: s, h: h,
		// One byte longer than allowed, so that an oversized datagram shows.
		buf:     make([]byte, servicenet.MaxDatagram+1),
		joiner:  pieces.NewJoiner(keepPieces),
		limiter: rate.NewLimiter(errorRate, errorBurst),
		told:    map[netip.AddrPort]time.Time{},
		rest:    pause,
		refuse:  udpguard.NewPace(refuseRate, refuseBurst, udpguard.FloodRest),
		strange: strangeErrors{
			limiter: rate.NewLimiter(strangeRate, strangeBurst), rest: udpguard.Rest{First: strangeRest, Most: strangeRestMost},
		},
	}
	if m := s.opts.MaxRate; m > 0 {
		r.pace = udpguard.NewPace(m, m/4, udpguard.FloodRest)
	}
	r.look, r.try = r.lookAt, func(fd uintptr) { r.found = r.lookAt(fd) }
	return r
}

// serve reads one endpoint until it is closed, which is net.ErrClosed, or fails for good.
func (r *reader) serve(ctx context.Context, ep *endpoint) error {
	r.ep, r.strange.until = ep, time.Time{}
	r.zones = nil            // an interface may have come back under another index
	wait := time.Millisecond // after an error that may pass, such as ENOBUFS
	for {
		err := r.next(ctx, ep)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			if err = r.blind(ctx, ep); err != nil {
				return err
			}
		}
		r.collectAgain()
		pace := r.pace
		if r.deliver() {
			pace = r.refuse
		}
		pace.Take()
		switch {
		case r.err == 0, fromICMP(r.err):
			wait = time.Millisecond
			continue
		case wait > time.Second:
			return r.err
		}
		pause(ctx, wait)
		wait *= 2
	}
}

// next reads the next datagram or errors. If datagrams are many and all are read, it lets some gather first.
func (r *reader) next(ctx context.Context, ep *endpoint) error {
	if r.crowded {
		if err := ep.raw.Control(r.try); err != nil || r.found {
			return err
		}
		r.rest(ctx, r.s.opts.Gather)
	}
	return ep.raw.Read(r.look)
}

// counts counts a datagram, and notes from time to time whether they come so fast that gathering saves wake-ups.
func (r *reader) counts() {
	if r.s.opts.Gather == 0 {
		return
	}
	if r.count++; r.count%gatherCount == 0 {
		now := time.Now()
		r.crowded = now.Sub(r.counted) < gatherCount/gatherRate*r.s.opts.Gather
		r.counted = now
	}
}

// lookAt reads one datagram, or the queued errors if there is none. The error queue must be empty before Read waits
// again, because the poller wakes only for new events. A receive error may come from ICMP; or Send may have consumed
// that error before the reader could.
func (r *reader) lookAt(fd uintptr) bool {
	r.errs = r.errs[:0]
	r.n, r.err = r.datagram(fd, r.buf)
	r.got = r.err == 0
	if r.got {
		r.sender = r.address()
		r.counts()
	}
	r.reads++
	if r.got && r.reads%checkEvery != 0 {
		return true
	}
	r.full = r.got && r.overflows(fd)
	if r.s.opts.wantsErrors() {
		r.takeErrors(fd)
	}
	if r.err == unix.EAGAIN {
		r.err = 0
		return len(r.errs) > 0
	}
	return true
}

// overflows reports whether the kernel has dropped datagrams since the last look and at least half of its buffer is in use, if
// the owner wants to know. Drops alone may be those of strangers that the kernel refuses.
func (r *reader) overflows(fd uintptr) bool {
	if r.s.opts.OnFull == nil {
		return false
	}
	info, ok := memInfo(fd)
	dropped := info[memInfoDrops] != r.drops
	r.drops = info[memInfoDrops]
	return ok && dropped && info[memInfoWaits] >= info[memInfoBuffer]/2
}

// takeErrors empties the error queue, or reads errorBatch entries from the queue.
func (r *reader) takeErrors(fd uintptr) {
	for len(r.errs) < errorBatch {
		errno, ok := r.failure(fd)
		if !ok {
			return
		}
		e := pathError{to: r.address(), errno: errno}
		if r.s.opts.OnRefused != nil && errno == unix.ECONNREFUSED {
			e.quote = bytes.Clone(r.payload[:r.quoted])
		}
		r.errs = append(r.errs, e)
	}
}

// blind reads without the poller, which refuses to wait at a socket with a pending error and no room to send
// (EPOLLERR alone). That happens just when neighbours do not answer. It passes when the kernel gives up the datagrams
// that wait for them.
func (r *reader) blind(ctx context.Context, ep *endpoint) error {
	found := false
	if err := ep.raw.Control(func(fd uintptr) { found = r.lookAt(fd) }); err != nil {
		return err
	}
	if !found {
		r.got = false
		pause(ctx, blindWait)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// deliver hands over the results of the last read, outside of the file descriptor's lock. It reports whether that was
// a stranger's datagram beyond the budget.
func (r *reader) deliver() (refused bool) {
	s := r.s
	if r.full {
		r.full = false
		s.opts.OnFull()
	}
	if len(r.errs) > 0 {
		r.tell(time.Now())
	}
	switch {
	case !r.got:
	case s.guard != nil && !s.guard.Admit(time.Now(), r.sender):
		return true
	case s.blocked.Load():
		s.blockedCount.Add(1)
	default:
		b, ok := r.joiner.Join(r.sender, r.buf[:r.n])
		switch {
		case !ok:
		case len(b) > servicenet.MaxDatagram:
			s.oversized.Add(1)
		default:
			s.received.Add(1)
			r.h(r.sender, b)
		}
	}
	return false
}

// tell reports errors, within the rate.
func (r *reader) tell(now time.Time) {
	for i := range r.errs {
		e := &r.errs[i]
		if r.s.blocked.Load() || !PathError(e.errno) {
			continue
		}
		r.s.pathErrors.Add(1)
		if r.s.opts.OnRefused != nil {
			r.refused(now, e)
		}
		if r.s.opts.OnError == nil {
			continue
		}
		if last, ok := r.told[e.to]; ok && now.Sub(last) < errorGap || !r.limiter.AllowN(now, 1) {
			r.s.untold.Add(1)
			continue
		}
		if len(r.told) >= destinations {
			clear(r.told)
		}
		r.told[e.to] = now
		r.s.opts.OnError(e.to, e.errno)
	}
}

// fromICMP holds for the errors that ICMP's answer to an earlier datagram makes of the next call
// (icmp_err_convert and icmpv6_err_convert in the kernel).
func fromICMP(errno syscall.Errno) bool {
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.EACCES,
		unix.EMSGSIZE, unix.EPROTO, unix.ENOPROTOOPT, unix.EOPNOTSUPP, unix.EINTR:
		return true
	default:
		return false
	}
}
