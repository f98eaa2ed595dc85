package agent

import (
	"crypto/ecdh"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/keys"
	"github.com/lofamo/lofamo/pkg/servicenet/sessions"
)

// maxExchanges bounds the path requests whose reply is still waited for. A half has one alternate
// under way, and one round over all paths when none works; what is older is not answered any more.
const maxExchanges = 8

// sessionKeys are the sessions with the supervisors, and the private keys of those that are being made.
// Its methods may be called from any goroutine.
type sessionKeys struct {
	self  fault.Origin
	table *sessions.Table

	mu    sync.Mutex
	asked []exchange // oldest first
}

// exchange is one path request: one key, however often and by however many paths it is sent.
type exchange struct {
	epoch, id uint64
	private   *ecdh.PrivateKey
}

func newSessionKeys(self fault.Origin) *sessionKeys {
	return &sessionKeys{self: self, table: sessions.NewTable()}
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

// agree makes the session of a reply that a supervisor has signed. A reply to what was not asked, or
// to another half, makes none.
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
	secret, err := keys.PathExchange{
		Half: k.self.String(), Epoch: r.GetEpoch(), ID: r.GetId(), Supervisor: supervisor, Session: r.GetSession(),
	}.Secret(private, r.GetKey())
	if err != nil {
		return err
	}
	if !k.table.Put(supervisor, servicenet.RoleSupervisor, servicenet.NewSession(r.GetSession(), secret)) {
		return fmt.Errorf("session %#x with %s: its name is taken", r.GetSession(), supervisor)
	}
	return nil
}

// newest returns the key of the last session with a supervisor; nil: there is none, and a signature must do.
func (k *sessionKeys) newest(supervisor string) *servicenet.SessionKey {
	return k.table.Newest(supervisor)
}
