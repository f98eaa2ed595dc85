package measure

import (
	"fmt"
	"io"
	"log"
	"time"

	"github.com/hashicorp/memberlist"
)

// Memberlist starts n members of hashicorp/memberlist with its LAN defaults in this process, stops
// one without a farewell and returns how long the last of the others took to call it dead.
func Memberlist(n int, limit time.Duration) (time.Duration, error) {
	dead := make(chan string, n*n)
	var members []*memberlist.Memberlist
	defer func() {
		for _, m := range members {
			_ = m.Shutdown()
		}
	}()
	for i := range n {
		cfg := memberlist.DefaultLANConfig()
		cfg.Name = fmt.Sprintf("member%d", i)
		cfg.BindAddr, cfg.BindPort, cfg.AdvertisePort = "127.0.0.1", 0, 0
		cfg.Logger = log.New(io.Discard, "", 0)
		cfg.Events = leaveEvents{name: cfg.Name, dead: dead}
		m, err := memberlist.Create(cfg)
		if err != nil {
			return 0, fmt.Errorf("start member %d: %w", i, err)
		}
		members = append(members, m)
		if i > 0 {
			if _, err := m.Join([]string{members[0].LocalNode().FullAddress().Addr}); err != nil {
				return 0, fmt.Errorf("join member %d: %w", i, err)
			}
		}
	}
	for deadline := time.Now().Add(limit); members[n-1].NumMembers() < n; {
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%d of %d members joined within %s", members[n-1].NumMembers(), n, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
	victim := members[n-1]
	start := time.Now()
	if err := victim.Shutdown(); err != nil {
		return 0, fmt.Errorf("stop member %d: %w", n-1, err)
	}
	members = members[:n-1]
	timeout := time.After(limit)
	for range members {
		select {
		case <-dead:
		case <-timeout:
			return 0, fmt.Errorf("not all members called the dead one dead within %s", limit)
		}
	}
	return time.Since(start), nil
}

// leaveEvents tells which members the member called name has lost.
type leaveEvents struct {
	name string
	dead chan<- string
}

func (leaveEvents) NotifyJoin(*memberlist.Node)    {}
func (leaveEvents) NotifyUpdate(*memberlist.Node)  {}
func (e leaveEvents) NotifyLeave(*memberlist.Node) { e.dead <- e.name }
