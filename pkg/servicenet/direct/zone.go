package direct

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// zoneAge is the age at which the number of an interface is looked up again: an interface may get another name.
const zoneAge = time.Minute

// zones remembers the numbers of the interfaces that IPv6 addresses name. A lookup lists all interfaces, and waits for the kernel while a
// card is reset. So only the first use of a name waits. Later lookups run in the background, and the former result counts until their end.
type zones struct {
	lookup func(name string) (uint32, error) // nil: interfaceNumber

	mu    sync.Mutex
	known map[string]*zone
}

type zone struct {
	number uint32
	err    error
	at     time.Time // of the lookup
	asked  bool      // a lookup is under way
}

// number returns the number of an interface.
func (z *zones) number(name string) (uint32, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k := z.known[name]
	if k == nil {
		if z.known == nil {
			z.known = map[string]*zone{}
		}
		k = &zone{}
		z.known[name] = k
		k.number, k.err = z.find(name)
		k.at = time.Now()
	} else if k.err != nil || time.Since(k.at) > zoneAge {
		z.again(name, k)
	}
	return k.number, k.err
}

// doubt looks an interface up again, because a datagram could not be sent there.
func (z *zones) doubt(name string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if k := z.known[name]; k != nil {
		z.again(name, k)
	}
}

// again begins a lookup in the background. The caller holds the mutex.
func (z *zones) again(name string, k *zone) {
	if k.asked {
		return
	}
	k.asked = true
	go func() {
		n, err := z.find(name)
		z.mu.Lock()
		defer z.mu.Unlock()
		k.number, k.err, k.at, k.asked = n, err, time.Now(), false
	}()
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
