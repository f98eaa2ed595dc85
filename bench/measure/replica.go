package measure

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// ReplicaConfig of a Replica.
type ReplicaConfig struct {
	ID       string
	Signer   servicenet.Signer
	Verifier servicenet.Verifier
	// Took is called for every datagram with reports once it is answered; may be nil.
	Took func(t *Took)
}

// Took is the outcome of a datagram.
type Took struct {
	Arrived, Accepted time.Time // from the socket; the inbox has judged all its reports
	Reports           int
}

// Replica is the part of a supervisor that reports meet first: the codec, the inbox, the sessions, and RECEIVED at
// once. It stores nothing: it calls accepted reports COMMITTED with its next answer, which also carries a
// supervisor's acks.
type Replica struct {
	cfg    ReplicaConfig
	sock   *direct.Socket
	table  *direct.Sessions
	opens  servicenet.Verifier
	inbox  *servicenet.Inbox
	proven map[string]bool  // halves that have their session
	owed   []fault.ReportID // COMMITTED not yet said
	fresh  uint64
	err    error
}

// NewReplica opens the socket, on loopback.
func NewReplica(cfg ReplicaConfig) (*Replica, error) {
	s, err := direct.Listen("127.0.0.1:0", direct.Options{})
	if err != nil {
		return nil, err
	}
	r := &Replica{cfg: cfg, sock: s, table: direct.NewSessions(), inbox: servicenet.NewInbox(nil), proven: map[string]bool{}}
	r.opens = direct.WithSessions(cfg.Verifier, r.table)
	return r, nil
}

// Addr returns where it listens.
func (r *Replica) Addr() netip.AddrPort { return r.sock.LocalAddr() }

// Know makes it share a session with a half without an exchange; before Run.
func (r *Replica) Know(o fault.Origin, key *servicenet.SessionKey) {
	r.table.Put(o.String(), servicenet.RoleNode, key)
	r.proven[o.String()] = true
}

// Run works until ctx ends, and returns any error.
func (r *Replica) Run(ctx context.Context) error {
	err := r.sock.Run(ctx, r.handle)
	return errors.Join(err, r.err)
}

// Fresh returns the number of accepted reports; call it after Run.
func (r *Replica) Fresh() uint64 { return r.fresh }

func (r *Replica) handle(from netip.AddrPort, b []byte) {
	arrived := time.Now()
	a, err := servicenet.Unwrap(b, fault.PathDirect, r.opens)
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	switch body := a.Msg.GetBody().(type) {
	case *lofamov1.Message_PathRequest:
		err = r.grant(from, a.Name, body.PathRequest)
	case *lofamov1.Message_PathAck:
		r.proven[a.Name] = true
	case *lofamov1.Message_Reports:
		err = r.take(from, arrived, &a)
	}
	if err != nil && !errors.Is(err, servicenet.ErrClosed) { // which is the end
		r.err = errors.Join(r.err, err)
	}
}

// take judges reports and answers them.
func (r *Replica) take(from netip.AddrPort, arrived time.Time, a *servicenet.Arrival) error {
	ids := make([]fault.ReportID, len(a.List))
	committed := r.owed
	r.owed = nil
	for i := range a.List {
		rep := &a.List[i]
		ids[i] = rep.ID
		switch verdict := r.inbox.Accept(rep.ID, rep.Digest); {
		case verdict == servicenet.Fresh && rep.Digest:
			r.fresh++
		case verdict == servicenet.Fresh:
			r.fresh++
			r.owed = append(r.owed, rep.ID)
		case verdict == servicenet.Duplicate && !rep.Digest:
			committed = append(committed, rep.ID)
		}
	}
	took := Took{Arrived: arrived, Accepted: time.Now(), Reports: len(ids)}
	acks := servicenet.NewAcks(lofamov1.Ack_RECEIVED, ids...)
	if len(committed) > 0 {
		acks = append(acks, servicenet.NewAcks(lofamov1.Ack_COMMITTED, committed...)...)
	}
	how := servicenet.SealOptions{}
	if r.proven[a.Name] {
		how.Session = r.table.Newest(a.Name)
	}
	b, err := servicenet.SealWith(&lofamov1.Message{Acks: acks}, r.cfg.Signer, how)
	if err != nil {
		return err
	}
	if r.cfg.Took != nil {
		r.cfg.Took(&took)
	}
	return r.sock.Send(from, b)
}

// grant answers a REQ with a REP.
func (r *Replica) grant(from netip.AddrPort, name string, q *lofamov1.PathRequest) error {
	private, err := newExchangeKey()
	if err != nil {
		return err
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	session := binary.BigEndian.Uint64(id[:]) | 1
	secret, err := servicenet.PathExchange{
		Half: name, Epoch: q.GetEpoch(), ID: q.GetId(), Supervisor: r.cfg.ID, Session: session,
	}.Secret(private, q.GetKey())
	if err != nil {
		return err
	}
	r.table.Put(name, servicenet.RoleNode, servicenet.NewSession(session, secret))
	r.proven[name] = false
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: &lofamov1.PathReply{
		Node: q.GetNode(), Half: q.GetHalf(), Epoch: q.GetEpoch(), Id: q.GetId(), Session: session,
		Checksum: servicenet.DefaultChecksum, Key: private.PublicKey().Bytes(), Leader: r.cfg.ID,
	}}}, r.cfg.Signer)
	if err != nil {
		return err
	}
	return r.sock.Send(from, b)
}
