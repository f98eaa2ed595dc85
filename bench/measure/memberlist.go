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
	gone := make(chan string, n*n)
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
		cfg.Events = leaveEvents{gone}
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
	for deadline := time.Now().Add(limit); !complete(members); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("not all of %d members know one another within %s", n, limit)
		}
	}
	victim := members[n-1]
	name := victim.LocalNode().Name
	start := time.Now()
	if err := victim.Shutdown(); err != nil {
		return 0, fmt.Errorf("stop member %d: %w", n-1, err)
	}
	members = members[:n-1]
	timeout := time.After(limit)
	for aware := 0; aware < len(members); {
		select {
		case who := <-gone:
			if who == name {
				aware++
			}
		case <-timeout:
			return 0, fmt.Errorf("%d of %d members called the dead one dead within %s", aware, len(members), limit)
		}
	}
	return time.Since(start), nil
}

// complete reports whether every member knows all members.
func complete(members []*memberlist.Memberlist) bool {
	for _, m := range members {
		if m.NumMembers() < len(members) {
			return false
		}
	}
	return true
}

// leaveEvents reports the members that a member has lost.
type leaveEvents struct{ gone chan<- string }

func (leaveEvents) NotifyJoin(*memberlist.Node)      {}
func (leaveEvents) NotifyUpdate(*memberlist.Node)    {}
func (e leaveEvents) NotifyLeave(n *memberlist.Node) { e.gone <- n.Name }
