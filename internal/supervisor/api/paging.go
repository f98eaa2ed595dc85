package api

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
)

// token is the content of continue: the start of the next page, and the answer and request that it belongs to.
type token struct {
	request  uint64 // hash of the request without continue
	revision uint64 // of the map; 0 in lists of events
	position uint64 // rank of the node, number of the link end or of the event
}

// tokenVersion is the first byte of every token.
const tokenVersion = 1

func (t token) String() string {
	b := []byte{tokenVersion}
	b = binary.BigEndian.AppendUint64(b, t.request)
	b = binary.AppendUvarint(b, t.revision)
	b = binary.AppendUvarint(b, t.position)
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseToken(s string) (token, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) < 9 || b[0] != tokenVersion {
		return token{}, fmt.Errorf("given %.40q: want what an answer before had in continue", s)
	}
	t := token{request: binary.BigEndian.Uint64(b[1:])}
	b = b[9:]
	for _, field := range []*uint64{&t.revision, &t.position} {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return token{}, fmt.Errorf("given %.40q: it is cut short", s)
		}
		*field, b = v, b[n:]
	}
	if len(b) > 0 {
		return token{}, fmt.Errorf("given %.40q: %d bytes follow it", s, len(b))
	}
	return t, nil
}

// paging reads limit and continue of a request. bare is the request with an empty continue. The token is nil on a
// first page.
func paging(bare proto.Message, limit uint32, given string, most int) (hash uint64, page *token, err error) {
	if int(limit) > most {
		return 0, nil, invalid("limit", "given %d: want at most %d", limit, most)
	}
	if hash, err = requestHash(bare); err != nil || given == "" {
		return hash, nil, err
	}
	t, err := parseToken(given)
	switch {
	case err != nil:
		return 0, nil, invalid("continue", "%v", err)
	case t.request != hash:
		return 0, nil, invalid("continue", "it belongs to another request: want all other fields as they were in the first one")
	}
	return hash, &t, nil
}

func requestHash(req proto.Message) (uint64, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return 0, err
	}
	d := xxhash.New()
	_, _ = d.WriteString(string(req.ProtoReflect().Descriptor().FullName()))
	_, _ = d.Write(b)
	return d.Sum64(), nil
}

// Bounds of the maps kept for later pages. Versions of a map share their equal parts.
const (
	snapshotsKept = 8
	snapshotTime  = time.Minute // since it was used last
)

// snapshots keeps the maps of lists that may have further pages.
type snapshots struct {
	mu   sync.Mutex
	kept []keptSnapshot // least recently used first
}

type keptSnapshot struct {
	snapshot
	used time.Time
}

// get returns the map of a revision, if it is still kept.
func (c *snapshots) get(revision uint64, now time.Time) (snapshot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	for i, k := range c.kept {
		if k.Revision == revision {
			k.used = now
			c.kept = append(slices.Delete(c.kept, i, i+1), k)
			return k.snapshot, true
		}
	}
	return snapshot{}, false
}

// keep keeps a map. It replaces one of the same revision and, if there are too many, the least recently used one.
func (c *snapshots) keep(s snapshot, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	c.kept = slices.DeleteFunc(c.kept, func(k keptSnapshot) bool { return k.Revision == s.Revision })
	c.kept = append(c.kept, keptSnapshot{s, now})
	if over := len(c.kept) - snapshotsKept; over > 0 {
		c.kept = slices.Delete(c.kept, 0, over)
	}
}

// run removes old maps, even while no pages are requested, until the context ends.
func (c *snapshots) run(ctx context.Context) {
	tick := time.NewTicker(snapshotTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c.mu.Lock()
			c.expire(now)
			c.mu.Unlock()
		}
	}
}

func (c *snapshots) expire(now time.Time) {
	for len(c.kept) > 0 && now.Sub(c.kept[0].used) > snapshotTime {
		c.kept = slices.Delete(c.kept, 0, 1)
	}
}
