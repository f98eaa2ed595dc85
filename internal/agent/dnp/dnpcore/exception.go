package dnpcore

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// exceptions are the exception registers (Table VI): bits that hold for a while after they were raised, and bits that
// follow a level.
type exceptions struct {
	registers []exceptionRegister
	dirty     bool
}

type exceptionRegister struct {
	addr   watchdog.Addr
	levels uint32
	until  map[uint32]time.Time // by bit
	value  uint32               // as last written
}

func newExceptions() exceptions {
	addrs := []watchdog.Addr{watchdog.AddrRouter0, watchdog.AddrRouter1, watchdog.AddrRDMA, watchdog.AddrEngine}
	for _, d := range grid.Directions() {
		addrs = append(addrs, watchdog.AddrChannel(d))
	}
	var e exceptions
	for _, a := range addrs {
		e.registers = append(e.registers, exceptionRegister{addr: a, until: map[uint32]time.Time{}})
	}
	return e
}

func (e *exceptions) at(a watchdog.Addr) *exceptionRegister {
	for i := range e.registers {
		if e.registers[i].addr == a {
			return &e.registers[i]
		}
	}
	panic(fmt.Sprintf("dnpcore: %s is no exception register", a))
}

// raise sets bits until the given time.
func (e *exceptions) raise(until time.Time, a watchdog.Addr, set uint32) {
	r := e.at(a)
	for ; set != 0; set &= set - 1 {
		r.until[1<<bits.TrailingZeros32(set)] = until
	}
	e.dirty = true
}

// level sets or clears a bit that follows its condition.
func (e *exceptions) level(a watchdog.Addr, bit uint32, on bool) {
	r := e.at(a)
	if on {
		r.levels |= bit
	} else {
		r.levels &^= bit
	}
	e.dirty = true
}

// settle clears bits whose hold time is over and returns the registers whose value changed.
func (e *exceptions) settle(now time.Time) []Store {
	if !e.dirty {
		return nil
	}
	e.dirty = false
	var out []Store
	for i := range e.registers {
		r := &e.registers[i]
		v := r.levels
		for bit, until := range r.until {
			if now.Before(until) {
				v |= bit
				e.dirty = true // look again
			} else {
				delete(r.until, bit)
			}
		}
		if v != r.value {
			r.value = v
			out = append(out, Store{r.addr, v})
		}
	}
	return out
}

// core is the health of the core: "we consider sick a DNP that has raised an exception" (§IV-B).
func (e *exceptions) core() watchdog.Health {
	r := e.registers
	return watchdog.CoreHealth(r[0].value, r[1].value, r[2].value, r[3].value)
}

func (e *exceptions) String() string {
	r := e.registers
	return fmt.Sprintf("exceptions: router %#x %#x, RDMA %#x, engine %#x", r[0].value, r[1].value, r[2].value, r[3].value)
}

// bucket is a token bucket that starts full.
type bucket struct {
	rate, burst, tokens float64
	at                  time.Time
}

func newBucket(rate, burst int, now time.Time) bucket {
	return bucket{rate: float64(rate), burst: float64(burst), tokens: float64(burst), at: now}
}

// take takes a token, and reports whether there was one.
func (b *bucket) take(now time.Time) bool {
	b.tokens = min(b.burst, b.tokens+now.Sub(b.at).Seconds()*b.rate)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// noteEvery is the minimum time between two log lines of a noteLimit.
const noteEvery = 10 * time.Second

// noteLimit limits log lines that another node can cause. The zero value is ready.
type noteLimit struct {
	at    time.Time // when a line was last logged
	quiet int       // lines left out since then
}

// take reports whether a line may be logged now. more is text for the end of that line: the number of lines left out since the last one.
// things names their subject.
func (n *noteLimit) take(now time.Time, things string) (more string, ok bool) {
	if !n.at.IsZero() && now.Sub(n.at) < noteEvery {
		n.quiet++
		return "", false
	}
	if n.quiet > 0 {
		more = fmt.Sprintf(" (and %d %s since the last line)", n.quiet, things)
	}
	*n = noteLimit{at: now}
	return more, true
}
