package direct

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

const (
	// zoneAge is the age at which zones looks a number up again, because an interface may get another name.
	zoneAge = time.Minute
	// zonePause is the least time between two lookups of a name.
	zonePause = time.Second
	// maxZones bounds the names that are remembered.
	maxZones = 64
)

// zones remembers the numbers of the interfaces that IPv6 addresses name. A lookup lists all interfaces, and waits for the kernel while a
// card is reset. So only the first use of a name waits. Later lookups run in the background. Until one ends, the earlier result counts. A
// lookup that hangs outlives the socket.
type zones struct {
	lookup func(name string) (uint32, error) // nil: interfaceNumber

	mu    sync.Mutex
	known map[string]*zone
}

type zone struct {
	number  uint32
	err     error
	at      time.Time // of the lookup
	asked   bool      // a lookup is under way
	doubted bool      // a datagram could not be sent there since
}

// number returns the number of an interface. Another use of the name during its first lookup fails with servicenet.ErrBusy.
func (z *zones) number(name string) (uint32, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k := z.known[name]
	switch {
	case k == nil:
		if z.known == nil {
			z.known = map[string]*zone{}
		}
		if !z.makeRoom() {
			return 0, fmt.Errorf("zone %q: %w: %d first lookups have not ended", name, servicenet.ErrBusy, maxZones)
		}
		k = &zone{asked: true, err: fmt.Errorf("zone %q: %w: its first lookup has not ended", name, servicenet.ErrBusy)}
		z.known[name] = k
		z.mu.Unlock()
		z.look(name, k)
		z.mu.Lock()
	case k.asked:
	case time.Since(k.at) > zoneAge || (k.err != nil || k.doubted) && time.Since(k.at) >= zonePause:
		k.asked = true
		go z.look(name, k)
	}
	return k.number, k.err
}

// makeRoom forgets the name with the oldest lookup, if there are maxZones. It returns false if lookups of all names are under way.
func (z *zones) makeRoom() bool {
	if len(z.known) < maxZones {
		return true
	}
	oldest := ""
	for name, k := range z.known {
		if !k.asked && (oldest == "" || k.at.Before(z.known[oldest].at)) {
			oldest = name
		}
	}
	delete(z.known, oldest)
	return oldest != ""
}

// doubt asks for another lookup of an interface if a datagram could not be sent there for a reason that may lie in its number.
func (z *zones) doubt(name string, err error) {
	if !slices.ContainsFunc(zoneErrors, func(e syscall.Errno) bool { return errors.Is(err, e) }) {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if k := z.known[name]; k != nil {
		k.doubted = true
	}
}

// zoneErrors are the answers to a datagram for an interface that is not there.
var zoneErrors = []syscall.Errno{unix.ENODEV, unix.ENXIO, unix.EINVAL, unix.ENETUNREACH, unix.EADDRNOTAVAIL}

// look looks a name up, without the mutex.
func (z *zones) look(name string, k *zone) {
	n, err := z.find(name)
	z.mu.Lock()
	defer z.mu.Unlock()
	k.number, k.err, k.at, k.asked, k.doubted = n, err, time.Now(), false, false
}

func (z *zones) find(name string) (uint32, error) {
	find := z.lookup
	if find == nil {
		find = interfaceNumber
	}
	n, err := find(name)
	if err != nil {
		return 0, fmt.Errorf("zone %q: %w", name, err)
	}
	return n, nil
}

func interfaceNumber(name string) (uint32, error) {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return uint32(ifc.Index), nil
}
