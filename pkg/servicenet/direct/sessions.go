package direct

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Bounds of Sessions. At MaxSessionsPerName, a new session replaces the name's oldest retired session, or its oldest if none is retired. At
// the bound for all, it replaces the oldest of all. The half of the dropped session gets no answers, signs, and requests the path again.
const (
	// MaxSessionsPerName is one session for each service interface: the sessions of a half with one supervisor.
	MaxSessionsPerName = 8
	// MaxSessions holds the sessions of 4,096 nodes of two halves. One takes about 400 bytes.
	MaxSessions = 2 * 4096 * MaxSessionsPerName
)

// ErrMAC is the error for a MAC that the session's key does not give.
var ErrMAC = errors.New("MAC not good")

// Sessions holds the keys that PathRequest and PathReply agreed on (servicenet.PathExchange), and maps each session to its
// other end. A MAC with such a key may stand for a signature (package servicenet says for which messages). It knows no
// time: a caller that learns that a certificate is no longer good calls Drop. Many goroutines may use it at once.
type Sessions struct {
	mu     sync.Mutex
	max    int
	byID   map[uint64]*session
	byName map[string][]*session // oldest first
	oldest *session              // of all, in the order of Put
	newest *session
}

type session struct {
	key        *servicenet.SessionKey
	role, name string
	retired    bool
	prev, next *session
}

// NewSessions returns an empty table.
func NewSessions() *Sessions { return newSessions(MaxSessions) }

func newSessions(limit int) *Sessions {
	return &Sessions{max: limit, byID: make(map[uint64]*session), byName: make(map[string][]*session)}
}

// Put adds a session under the signer of the exchange; it is then the name's newest. It returns false, and changes
// nothing, for an id that is 0 or that another name has: one supervisor must not be able to evict another one's
// session.
func (t *Sessions) Put(name, role string, key *servicenet.SessionKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key.ID() == 0 {
		return false
	}
	if old := t.byID[key.ID()]; old != nil {
		if old.name != name || old.role != role {
			return false
		}
		t.remove(old)
	}
	if mine := t.byName[name]; len(mine) == MaxSessionsPerName {
		t.remove(mine[max(0, slices.IndexFunc(mine, func(s *session) bool { return s.retired }))])
	}
	if len(t.byID) == t.max {
		t.remove(t.oldest)
	}
	t.add(&session{key: key, role: role, name: name})
	return true
}

// Newest returns the key that was put last for a name, and nil when there is none.
func (t *Sessions) Newest(name string) *servicenet.SessionKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.byName[name]
	if len(mine) == 0 {
		return nil
	}
	return mine[len(mine)-1].key
}

// Drop forgets all sessions of a name.
func (t *Sessions) Drop(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.byName[name]) > 0 {
		t.remove(t.byName[name][0])
	}
}

// Retire notes that a session is no longer in use. It still verifies late messages, until another session of the name needs
// its place.
func (t *Sessions) Retire(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byID[id]; s != nil {
		s.retired = true
	}
}

// Remove forgets one session, if it is known.
func (t *Sessions) Remove(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byID[id]; s != nil {
		t.remove(s)
	}
}

// Len returns how many sessions there are.
func (t *Sessions) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}

// VerifyMAC implements servicenet.SessionVerifier.
func (t *Sessions) VerifyMAC(id uint64, payload, mac []byte) (role, name string, err error) {
	t.mu.Lock()
	s := t.byID[id]
	t.mu.Unlock()
	if s == nil {
		return "", "", servicenet.ErrUnknownSession
	}
	if !s.key.Verify(payload, mac) {
		return "", "", fmt.Errorf("session %#x of %s %s: %w", id, s.role, s.name, ErrMAC)
	}
	return s.role, s.name, nil
}

// WithSessions returns a verifier of both: v's signatures and the table's MACs.
func WithSessions(v servicenet.Verifier, t *Sessions) servicenet.Verifier {
	return struct {
		servicenet.Verifier
		servicenet.SessionVerifier
	}{v, t}
}

func (t *Sessions) add(s *session) {
	t.byID[s.key.ID()] = s
	t.byName[s.name] = append(t.byName[s.name], s)
	s.prev = t.newest
	if s.prev == nil {
		t.oldest = s
	} else {
		s.prev.next = s
	}
	t.newest = s
}

func (t *Sessions) remove(s *session) {
	delete(t.byID, s.key.ID())
	kept := make([]*session, 0, MaxSessionsPerName)
	for _, m := range t.byName[s.name] {
		if m != s {
			kept = append(kept, m)
		}
	}
	t.byName[s.name] = kept
	if len(kept) == 0 {
		delete(t.byName, s.name)
	}
	if s.prev == nil {
		t.oldest = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		t.newest = s.prev
	} else {
		s.next.prev = s.prev
	}
}
