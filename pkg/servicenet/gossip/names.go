package gossip

import (
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/memberlist"
)

// MaxMembers is the largest value of Config.MaxMembers, and its default.
const MaxMembers = 1 << 14

// Bounds of what memberlist keeps of a member, in bytes.
const (
	maxName = 128
	maxMeta = 256
)

// check refuses members that Refuse or Admit shut out, and those that are longer than members are.
func (n *Net) check(node *memberlist.Node) error {
	if len(node.Name) > maxName || len(node.Meta) > maxMeta {
		return fmt.Errorf("member %.80q: has a name of %d bytes and %d bytes of metadata: want at most %d and %d", node.Name, len(node.Name),
			len(node.Meta), maxName, maxMeta)
	}
	if n.refuses(node.Name) {
		return fmt.Errorf("member %.80q: its certificates are revoked", node.Name)
	}
	if n.cfg.Admit == nil || node.Name == n.cfg.Name {
		return nil
	}
	if m, _ := memberOf(node); !n.cfg.Admit(m) {
		return fmt.Errorf("member %.80q: this pool has no such member", node.Name)
	}
	return nil
}

// names are the names that memberlist may keep. It keeps those of dead members for a while, and of some that never become live.
type names struct {
	most      int
	keep      time.Duration        // memberlist has forgotten a dead member after that time
	at        map[string]time.Time // of the last announcement
	clearedAt time.Time
}

// add counts a name. It refuses a new one if there are too many.
func (t *names) add(name string, now time.Time, live map[string]Member) error {
	if _, known := t.at[name]; !known && len(t.at) >= t.most {
		t.clear(now, live)
		if len(t.at) >= t.most {
			return fmt.Errorf("member %.80q: there are %d already", name, t.most)
		}
	}
	t.at[name] = now
	return nil
}

// clear removes the names that memberlist has forgotten. It looks at most once a second, for a flood of names asks all the time.
func (t *names) clear(now time.Time, live map[string]Member) {
	if now.Sub(t.clearedAt) < time.Second {
		return
	}
	t.clearedAt = now
	maps.DeleteFunc(t.at, func(name string, at time.Time) bool {
		_, lives := live[name]
		return !lives && now.Sub(at) > t.keep
	})
}
