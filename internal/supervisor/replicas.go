package supervisor

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
)

// replicas holds the replicas that this one knows.
type replicas struct {
	configured []config.ReplicaEntry

	mu   sync.Mutex
	list []*lofamov1.Supervisor // never modified in place
}

func newReplicas(configured []config.ReplicaEntry) *replicas {
	return &replicas{configured: configured, list: mergeReplicas(configured, nil)}
}

func (r *replicas) set(said []*lofamov1.Supervisor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = mergeReplicas(r.configured, said)
}

// all returns the replicas, configured ones first.
func (r *replicas) all() []*lofamov1.Supervisor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list
}

// addresses returns the addresses of all other replicas' gRPC services.
func (r *replicas) addresses(self string) map[string]string {
	out := make(map[string]string)
	for _, sup := range r.all() {
		if sup.GetId() != self {
			out[sup.GetId()] = sup.GetAddress()
		}
	}
	return out
}

// mergeReplicas merges the configuration with the replicas' own entries in the store, which take precedence. So this
// replica knows about added, moved and removed replicas without a change of its configuration.
func mergeReplicas(configured []config.ReplicaEntry, said []*lofamov1.Supervisor) []*lofamov1.Supervisor {
	own := make(map[string]*lofamov1.Supervisor, len(said))
	for _, sup := range said {
		own[sup.GetId()] = sup
	}
	var out []*lofamov1.Supervisor
	for _, r := range configured {
		sup := own[r.ID]
		delete(own, r.ID)
		switch {
		case sup == nil:
			out = append(out, &lofamov1.Supervisor{Id: r.ID, Address: r.GRPC, ReportAddress: r.Report, HttpAddress: r.HTTP,
				Web: strings.TrimSuffix(r.Web, "/")})
		case !sup.GetRemoved():
			out = append(out, proto.CloneOf(sup))
		}
	}
	n := len(out)
	for _, sup := range own {
		if !sup.GetRemoved() {
			out = append(out, proto.CloneOf(sup))
		}
	}
	slices.SortFunc(out[n:], func(a, b *lofamov1.Supervisor) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return out
}

// followReplicas keeps the replicas and the connections to them up to date, until the context ends.
func (s *Supervisor) followReplicas(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	missing := make(chan struct{}, 1) // has an entry if this replica was removed from the list
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-missing:
				s.returnToList(ctx)
			}
		}
	})
	for ctx.Err() == nil {
		err := s.store.FollowSupervisors(ctx, func(said []*lofamov1.Supervisor) {
			s.engine.replicas.set(said)
			if err := s.engine.peers.Set(s.engine.replicas.addresses(s.cfg.ID)); err != nil {
				s.logger.Warn("a replica cannot be connected to", "err", err)
			}
			if slices.ContainsFunc(said, func(sup *lofamov1.Supervisor) bool { return sup.GetId() == s.cfg.ID && sup.GetRemoved() }) {
				select {
				case missing <- struct{}{}:
				default:
				}
			}
		})
		s.logger.Debug("following the replicas ended", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(publishRetry):
		}
	}
}

// returnToList publishes this replica's entry again if the replica was removed from the list but its member still stands. This happens if a
// replica of an earlier version was asked to remove the id of a replica whose member of etcd has another name: it removed only the entry.
// Without an entry, a leader gets no reports from the other replicas.
func (s *Supervisor) returnToList(ctx context.Context) {
	for failed := false; s.store.member != nil && ctx.Err() == nil; {
		asked, cancel := context.WithTimeout(ctx, 2*time.Second)
		resp, err := s.store.client.MemberList(asked) // confirmed by a quorum: no removed member gets an answer with itself in it
		cancel()
		if err == nil {
			if slices.ContainsFunc(resp.Members, func(m *etcdserverpb.Member) bool { return strconv.FormatUint(m.ID, 16) == s.store.member.ID() }) {
				if s.publish(ctx); ctx.Err() != nil {
					return
				}
				s.logger.Info("this replica was removed from the list of replicas, but not its etcd member: returned to the list")
			}
			return
		}
		if !failed && ctx.Err() == nil {
			failed = true
			s.logger.Warn("this replica was removed from the list of replicas, and etcd does not confirm its member: retrying", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(publishRetry):
		}
	}
}
