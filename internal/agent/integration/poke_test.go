package integration

import (
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// poker plays the owner of a watchdog word from outside: it writes the word again and again, as
// the owner would, until it is stopped.
type poker struct {
	t    *testing.T
	path string
	mu   sync.Mutex
	addr watchdog.Addr
	word uint32
	done chan struct{}
	end  sync.Once
	wait sync.WaitGroup
}

func newPoker(t *testing.T, path string) *poker {
	t.Helper()
	p := &poker{t: t, path: path, done: make(chan struct{})}
	t.Cleanup(p.stop)
	return p
}

func (p *poker) dnp(w watchdog.DNPWord) { w.Valid = true; p.set(watchdog.AddrDNPWatchdog, w.Encode()) }
func (p *poker) host(w watchdog.HostWord) {
	w.Valid = true
	p.set(watchdog.AddrHostWatchdog, w.Encode())
}

func (p *poker) set(a watchdog.Addr, word uint32) {
	p.mu.Lock()
	first := p.addr == 0
	p.addr, p.word = a, word
	p.mu.Unlock()
	if !first {
		return
	}
	p.wait.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.done:
				return
			case <-tick.C:
			}
			p.mu.Lock()
			a, w := p.addr, p.word
			p.mu.Unlock()
			// The file appears with the first half.
			_ = regfile.Poke(p.path, a, w)
		}
	})
}

func (p *poker) stop() {
	p.end.Do(func() { close(p.done) })
	p.wait.Wait()
}

func linkBroken(d grid.Direction) (w watchdog.DNPWord) {
	w.Links[d.Index()] = watchdog.HealthBroken
	return w
}

func neighbourHostDead(d grid.Direction) (w watchdog.DNPWord) {
	w.NeighbourHostFailed[d.Index()] = true
	return w
}

func memoryBroken() watchdog.HostWord { return watchdog.HostWord{Memory: watchdog.HealthBroken} }
