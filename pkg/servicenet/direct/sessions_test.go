package direct

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

func key(id uint64) *servicenet.SessionKey { return servicenet.NewSession(id, [32]byte{byte(id)}) }

func mac(id uint64, payload string) []byte {
	m := key(id).MAC([]byte(payload))
	return m[:]
}

func TestMACIsVerifiedByItsSession(t *testing.T) {
	tab := NewSessions()
	tab.Put("n0/host", servicenet.RoleNode, key(1))
	tab.Put("s0", servicenet.RoleSupervisor, key(2))
	role, name, err := tab.VerifyMAC(1, []byte("x"), mac(1, "x"))
	if role != servicenet.RoleNode || name != "n0/host" || err != nil {
		t.Errorf("%s %s, %v", role, name, err)
	}
	for what, tt := range map[string]struct {
		id   uint64
		mac  []byte
		want error
	}{
		"another payload":   {1, mac(1, "y"), ErrMAC},
		"another's session": {2, mac(1, "x"), ErrMAC},
		"half a MAC":        {1, mac(1, "x")[:8], ErrMAC},
		"no MAC":            {1, nil, ErrMAC},
		"unknown session":   {3, mac(3, "x"), servicenet.ErrUnknownSession},
		"no session":        {0, mac(1, "x"), servicenet.ErrUnknownSession},
	} {
		if role, name, err := tab.VerifyMAC(tt.id, []byte("x"), tt.mac); !errors.Is(err, tt.want) || role+name != "" {
			t.Errorf("%s: %q %q, %v; want %v", what, role, name, err, tt.want)
		}
	}
	tab.Drop("n0/host")
	if _, _, err := tab.VerifyMAC(1, []byte("x"), mac(1, "x")); !errors.Is(err, servicenet.ErrUnknownSession) {
		t.Errorf("after Drop: %v", err)
	}
	if tab.Newest("n0/host") != nil || tab.Newest("s0").ID() != 2 || tab.Len() != 1 {
		t.Error("Drop took too much or too little")
	}
	tab.Put("s0", servicenet.RoleSupervisor, key(4))
	tab.Remove(4)
	tab.Remove(4)
	if tab.Newest("s0").ID() != 2 || tab.Len() != 1 {
		t.Error("Remove took too much or too little")
	}
}

func TestForeignSessionIsRefused(t *testing.T) {
	tab := NewSessions()
	if tab.Put("n0/host", servicenet.RoleNode, key(0)) {
		t.Error("session 0 is taken")
	}
	if !tab.Put("s0", servicenet.RoleSupervisor, key(1)) || !tab.Put("s0", servicenet.RoleSupervisor, servicenet.NewSession(1, [32]byte{9})) {
		t.Error("a supervisor's session is not taken, or not replaced by its own")
	}
	if tab.Put("s1", servicenet.RoleSupervisor, key(1)) || tab.Put("s0", servicenet.RoleNode, key(1)) {
		t.Error("another's session is replaced")
	}
	if m := tab.Newest("s0").MAC(nil); tab.Len() != 1 || m != servicenet.NewSession(1, [32]byte{9}).MAC(nil) {
		t.Error("the last key is not the one that counts")
	}
}

type fakeVerifier struct{}

func (fakeVerifier) VerifyName(_, _, _ []byte) (role, name string, err error) {
	return servicenet.RoleSupervisor, "s0", nil
}

// TestWithSessionsOpensBothKinds: WithSessions opens signed messages and messages under a MAC.
func TestWithSessionsOpensBothKinds(t *testing.T) {
	tab := NewSessions()
	tab.Put("s1", servicenet.RoleSupervisor, key(7))
	v := WithSessions(fakeVerifier{}, tab)
	again := &lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}
	under, err := servicenet.SealWith(again, nil, servicenet.SealOptions{Session: tab.Newest("s1")})
	if err != nil {
		t.Fatal(err)
	}
	if o, err := servicenet.Open(under, v); err != nil || o.Name != "s1" || o.Session != 7 {
		t.Errorf("under a MAC: %+v, %v", o, err)
	}
	signed, err := servicenet.Seal(again, fakeSigner{})
	if err != nil {
		t.Fatal(err)
	}
	if o, err := servicenet.Open(signed, v); err != nil || o.Name != "s0" || o.Session != 0 {
		t.Errorf("signed: %+v, %v", o, err)
	}
	tab.Drop("s1")
	if _, err := servicenet.Open(under, v); servicenet.RefusalOf(err) != servicenet.RefusedSession {
		t.Errorf("after a restart: %v", err)
	}
}

type fakeSigner struct{}

func (fakeSigner) Cert() []byte         { return []byte("certificate") }
func (fakeSigner) Sign(_ []byte) []byte { return make([]byte, 64) }

// naive is a list of (name, id), the oldest first.
type naive struct {
	limit int
	list  []naiveSession
}

type naiveSession struct {
	name    string
	id      uint64
	retired bool
}

func (n *naive) drop(f func(naiveSession) bool) {
	n.list = slices.DeleteFunc(n.list, f)
}

func (n *naive) of(name string) (ids []uint64) {
	for _, s := range n.list {
		if s.name == name {
			ids = append(ids, s.id)
		}
	}
	return ids
}

func (n *naive) put(name string, id uint64) bool {
	if i := slices.IndexFunc(n.list, func(s naiveSession) bool { return s.id == id }); id == 0 || i >= 0 && n.list[i].name != name {
		return false
	}
	n.drop(func(s naiveSession) bool { return s.id == id })
	if ids := n.of(name); len(ids) == MaxSessionsPerName {
		leave := ids[0]
		for _, s := range slices.Backward(n.list) {
			if s.name == name && s.retired {
				leave = s.id
			}
		}
		n.drop(func(s naiveSession) bool { return s.id == leave })
	}
	if len(n.list) == n.limit {
		n.list = n.list[1:]
	}
	n.list = append(n.list, naiveSession{name: name, id: id})
	return true
}

// The table against the list, both bounds reached again and again.
func TestTableAgreesWithNaiveList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab, want := newSessions(20), &naive{limit: 20}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		id := rapid.Uint64Range(0, 60)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n, i := name.Draw(t, "name"), id.Draw(t, "id")
				if got, want := tab.Put(n, servicenet.RoleNode, key(i)), want.put(n, i); got != want {
					t.Fatalf("put %s %d: %t, want %t", n, i, got, want)
				}
			},
			"drop": func(t *rapid.T) {
				n := name.Draw(t, "name")
				tab.Drop(n)
				want.drop(func(s naiveSession) bool { return s.name == n })
			},
			"retire": func(t *rapid.T) {
				i := id.Draw(t, "id")
				tab.Retire(i)
				for k := range want.list {
					want.list[k].retired = want.list[k].retired || want.list[k].id == i
				}
			},
			"": func(t *rapid.T) { compare(t, tab, want) },
		})
	})
}

func compare(t *rapid.T, tab *Sessions, want *naive) {
	if tab.Len() != len(want.list) {
		t.Fatalf("%d sessions, want %d", tab.Len(), len(want.list))
	}
	names := map[string]bool{}
	for _, s := range want.list {
		names[s.name] = true
		if _, name, err := tab.VerifyMAC(s.id, []byte("x"), mac(s.id, "x")); err != nil || name != s.name {
			t.Fatalf("session %d: %s, %v; want %s", s.id, name, err, s.name)
		}
	}
	for n := range names {
		if ids := want.of(n); tab.Newest(n).ID() != ids[len(ids)-1] {
			t.Fatalf("newest of %s: %d, want %d", n, tab.Newest(n).ID(), ids[len(ids)-1])
		}
	}
	if len(tab.byName) != len(names) {
		t.Fatalf("%d names kept, want %d", len(tab.byName), len(names))
	}
}

// However many are put, one name has MaxSessionsPerName and the table its bound.
func TestSessionsAreBoundedPerName(t *testing.T) {
	tab := newSessions(100)
	for i := range uint64(1000) {
		tab.Put("greedy", servicenet.RoleNode, key(i+1))
	}
	if tab.Len() != MaxSessionsPerName {
		t.Errorf("%d sessions of one name, want %d", tab.Len(), MaxSessionsPerName)
	}
	for i := range uint64(1000) {
		tab.Put(fmt.Sprint(i), servicenet.RoleNode, key(10_000+i))
	}
	if tab.Len() != 100 || len(tab.byName) != 100 || tab.Newest("greedy") != nil || tab.Newest("999") == nil {
		t.Errorf("%d sessions of %d names, want the 100 newest", tab.Len(), len(tab.byName))
	}
}

func TestSessionsAreSafeForConcurrentUse(t *testing.T) {
	tab := newSessions(16)
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			name := fmt.Sprint(g)
			for i := range uint64(200) {
				tab.Put(name, servicenet.RoleNode, key(g*1000+i+1))
				if k := tab.Newest(name); k != nil {
					m := k.MAC([]byte("x"))
					if _, n, err := tab.VerifyMAC(k.ID(), []byte("x"), m[:]); err == nil && n != name {
						t.Errorf("session of %s is %s's", name, n)
					}
				}
			}
			tab.Drop(name)
		})
	}
	wg.Wait()
	if tab.Len() != 0 {
		t.Errorf("%d sessions left", tab.Len())
	}
}
