package host

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// maxExchanges bounds the pending path requests. A half has one alternate under way, and one round over all paths
// when none works. Older requests get no answer any more.
const maxExchanges = 8

// sessionKeys holds the sessions with the supervisors, and the private keys of pending ones. Its methods may be
// called from any goroutine.
type sessionKeys struct {
	self  fault.Origin
	table *direct.Sessions

	mu    sync.Mutex
	asked []exchange // oldest first
	kept  []keptSession
	// store saves the sessions for a restart; nil: they are not saved.
	store func([]byte)
}

// keptSession is a session that a later incarnation must still understand, because its supervisors continue to use
// it.
type keptSession struct {
	id         uint64
	secret     [32]byte
	supervisor string
}

// maxKept is the number of newest sessions to keep: one for each path would be 40.
const maxKept = 32

// exchange is one path request: one key for all its copies, on all paths.
type exchange struct {
	epoch, id uint64
	private   *ecdh.PrivateKey
}

func newSessionKeys(self fault.Origin) *sessionKeys {
	return &sessionKeys{self: self, table: direct.NewSessions()}
}

// fill puts the public key of its exchange into a request.
func (k *sessionKeys) fill(r *lofamov1.PathRequest) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	private := k.find(r.GetEpoch(), r.GetId())
	if private == nil {
		var err error
		if private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return fmt.Errorf("key of path request %d: %w", r.GetId(), err)
		}
		if len(k.asked) == maxExchanges {
			k.asked = slices.Delete(k.asked, 0, 1)
		}
		k.asked = append(k.asked, exchange{r.GetEpoch(), r.GetId(), private})
	}
	r.Key = private.PublicKey().Bytes()
	return nil
}

func (k *sessionKeys) find(epoch, id uint64) *ecdh.PrivateKey {
	for _, e := range k.asked {
		if e.epoch == epoch && e.id == id {
			return e.private
		}
	}
	return nil
}

// agree makes the session from a supervisor's signed reply. It makes none if the reply is for another half or matches
// no request.
func (k *sessionKeys) agree(supervisor string, r *lofamov1.PathReply) error {
	if fault.NodeID(r.GetNode()) != k.self.Node || fault.Half(r.GetHalf()) != k.self.Half {
		return nil
	}
	k.mu.Lock()
	private := k.find(r.GetEpoch(), r.GetId())
	k.mu.Unlock()
	if private == nil {
		return nil
	}
	secret, err := servicenet.PathExchange{
		Half: k.self.String(), Epoch: r.GetEpoch(), ID: r.GetId(), Supervisor: supervisor, Session: r.GetSession(),
	}.Secret(private, r.GetKey())
	if err != nil {
		return err
	}
	if !k.table.Put(supervisor, servicenet.RoleSupervisor, servicenet.NewSession(r.GetSession(), secret)) {
		return fmt.Errorf("session %#x with %s: its name is in use", r.GetSession(), supervisor)
	}
	k.keep(keptSession{r.GetSession(), secret, supervisor})
	return nil
}

// keep stores a new session before any message uses it.
func (k *sessionKeys) keep(s keptSession) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept = append(slices.DeleteFunc(k.kept, func(o keptSession) bool { return o.id == s.id }), s)
	k.kept = k.kept[max(0, len(k.kept)-maxKept):]
	if k.store == nil {
		return
	}
	var b []byte
	for _, s := range k.kept {
		b = binary.LittleEndian.AppendUint64(b, s.id)
		b = append(b, s.secret[:]...)
		b = append(b, byte(len(s.supervisor)))
		b = append(b, s.supervisor...)
	}
	k.store(b)
}

// resume restores the sessions of an earlier incarnation. This half sends under new sessions.
func (k *sessionKeys) resume(b []byte) {
	const fixed = 8 + 32 + 1
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(b) >= fixed && len(b) >= fixed+int(b[fixed-1]) {
		s := keptSession{binary.LittleEndian.Uint64(b), [32]byte(b[8:]), string(b[fixed : fixed+int(b[fixed-1])])}
		if k.table.Put(s.supervisor, servicenet.RoleSupervisor, servicenet.NewSession(s.id, s.secret)) {
			k.kept = append(k.kept, s)
		}
		b = b[fixed+len(s.supervisor):]
	}
}

// newest returns the key of the last session with a supervisor; nil: none, and a signature must do.
func (k *sessionKeys) newest(supervisor string) *servicenet.SessionKey {
	return k.table.Newest(supervisor)
}
