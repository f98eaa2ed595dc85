package host

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"

	"github.com/lofamo/lofamo/internal/agent/storage"
)

// reply is the supervisor's end of an exchange: its reply, and the key that it has then.
// keysOwner is whose keys are tried.
var keysOwner = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}

func reply(t *testing.T, q *lofamov1.PathRequest, supervisor string, session uint64) (*lofamov1.PathReply, *servicenet.SessionKey) {
	t.Helper()
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := servicenet.PathExchange{
		Half: keysOwner.String(), Epoch: q.GetEpoch(), ID: q.GetId(), Supervisor: supervisor, Session: session,
	}.Secret(private, q.GetKey())
	if err != nil {
		t.Fatal(err)
	}
	return &lofamov1.PathReply{
		Node: q.GetNode(), Half: q.GetHalf(), Epoch: q.GetEpoch(), Id: q.GetId(), Key: private.PublicKey().Bytes(), Session: session,
	}, servicenet.NewSession(session, secret)
}

func request(id uint64) *lofamov1.PathRequest {
	return &lofamov1.PathRequest{Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: 3, Id: id}
}

func fill(t *testing.T, k *sessionKeys, id uint64) *lofamov1.PathRequest {
	t.Helper()
	q := request(id)
	if err := k.fill(q); err != nil {
		t.Fatal(err)
	}
	return q
}

// Both ends have one key; repetitions of a request carry the same public key, another request another.
func TestSessionKeysAgree(t *testing.T) {
	k := newSessionKeys(keysOwner)
	first, again, other := fill(t, k, 1), fill(t, k, 1), fill(t, k, 2)
	if !bytes.Equal(first.GetKey(), again.GetKey()) || bytes.Equal(first.GetKey(), other.GetKey()) {
		t.Errorf("keys %x, %x for one request, %x for another", first.GetKey(), again.GetKey(), other.GetKey())
	}
	if k.newest("sup-0") != nil {
		t.Error("there is a session before any reply")
	}
	r, theirs := reply(t, first, "sup-0", 77)
	for range 2 { // a duplicate changes nothing
		if err := k.agree("sup-0", r); err != nil {
			t.Fatal(err)
		}
	}
	mine := k.newest("sup-0")
	if mine == nil || mine.ID() != 77 || mine.MAC([]byte("x")) != theirs.MAC([]byte("x")) {
		t.Fatalf("session %v: want that of the reply", mine)
	}
	mac := theirs.MAC([]byte("ack"))
	if role, name, err := k.table.VerifyMAC(77, []byte("ack"), mac[:]); err != nil || role != servicenet.RoleSupervisor || name != "sup-0" {
		t.Errorf("%s %s, %v: want supervisor sup-0", role, name, err)
	}
	r, _ = reply(t, other, "sup-1", 78)
	if err := k.agree("sup-1", r); err != nil || k.newest("sup-1") == nil || k.newest("sup-0").ID() != 77 {
		t.Errorf("a second supervisor's session: %v", err)
	}
}

// A reply that matches no request, is for another half, or holds no key makes no session.
func TestSessionKeysRefuseInvalidExchange(t *testing.T) {
	k := newSessionKeys(keysOwner)
	q := fill(t, k, 1)
	for _, tc := range []struct {
		name   string
		change func(*lofamov1.PathReply)
		fails  bool
	}{
		{"another id", func(r *lofamov1.PathReply) { r.Id = 2 }, false},
		{"another epoch", func(r *lofamov1.PathReply) { r.Epoch = 2 }, false},
		{"another half", func(r *lofamov1.PathReply) { r.Half = lofamov1.Half_HALF_DNP }, false},
		{"another node", func(r *lofamov1.PathReply) { r.Node = "n1-0-0" }, false},
		{"a short key", func(r *lofamov1.PathReply) { r.Key = r.Key[:31] }, true},
		{"a key of zeros", func(r *lofamov1.PathReply) { clear(r.Key) }, true},
	} {
		r, _ := reply(t, q, "sup-0", 77)
		tc.change(r)
		if err := k.agree("sup-0", r); (err != nil) != tc.fails || k.newest("sup-0") != nil {
			t.Errorf("%s: error %v, session %v: want none", tc.name, err, k.newest("sup-0"))
		}
	}
}

// A supervisor cannot take another one's session away by its name.
func TestSupervisorCannotTakeSessionOfAnother(t *testing.T) {
	k := newSessionKeys(keysOwner)
	r, _ := reply(t, fill(t, k, 1), "sup-0", 77)
	if err := k.agree("sup-0", r); err != nil {
		t.Fatal(err)
	}
	r, _ = reply(t, fill(t, k, 2), "sup-1", 77)
	if err := k.agree("sup-1", r); err == nil || k.newest("sup-0") == nil || k.newest("sup-1") != nil {
		t.Errorf("error %v: want one, and the first session still there", err)
	}
}

// Only the newest exchanges are kept.
func TestSessionKeysAreBounded(t *testing.T) {
	k := newSessionKeys(keysOwner)
	for id := range uint64(3 * maxExchanges) {
		fill(t, k, id+1)
	}
	if len(k.asked) != maxExchanges {
		t.Errorf("%d exchanges are kept, want %d", len(k.asked), maxExchanges)
	}
}

// The next incarnation of a half understands supervisors' messages under the sessions of this one. It sends none
// under them until it has made a path request.
func TestSessionOfEarlierLifeOnlyReceives(t *testing.T) {
	k := newSessionKeys(keysOwner)
	var stored []byte
	k.store = func(b []byte) { stored = b }
	theirs := map[uint64]*servicenet.SessionKey{}
	for i := range uint64(maxKept + 3) {
		r, key := reply(t, fill(t, k, i+1), "sup-0", 100+i)
		if err := k.agree("sup-0", r); err != nil {
			t.Fatal(err)
		}
		theirs[100+i] = key
	}
	if len(stored) > storage.MaxPathSessions {
		t.Errorf("%d bytes do not fit the copy", len(stored))
	}
	next := newSessionKeys(keysOwner)
	next.resume(stored)
	for id, key := range theirs {
		mac := key.MAC([]byte("ack"))
		role, name, err := next.table.VerifyMAC(id, []byte("ack"), mac[:])
		switch newest := id >= 100+maxKept+3-direct.MaxSessionsPerName; {
		case newest && (err != nil || role != servicenet.RoleSupervisor || name != "sup-0"):
			t.Errorf("session %d: %s %s, %v", id, role, name, err)
		case id < 103 && err == nil:
			t.Errorf("session %d is too old to be kept", id)
		}
	}
	for _, b := range [][]byte{nil, {1}, stored[:len(stored)-1], bytes.Repeat([]byte{0xff}, 100)} {
		newSessionKeys(keysOwner).resume(b) // a version with another meaning, apart from the CRC
	}
}
