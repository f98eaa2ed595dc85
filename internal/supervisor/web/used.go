package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
)

// Limits of the remembered used tokens.
const (
	maxUsed        = 4096    // beyond this, logins are refused and no token is forgotten
	maxUsedSubject = 64      // per subject, so that no subject keeps others out
	maxUsedBytes   = 4 << 20 // of the file
	// usedTime is the time a token is remembered after its expiry, in addition to the accepted clock difference.
	usedTime = 10 * time.Minute
)

var (
	errUsed      = errors.New("the login was used already: 'lofamoctl web' makes another")
	errManyUsed  = fmt.Errorf("%d logins of this subject were used within minutes: try again in %v", maxUsedSubject, usedTime)
	errTableFull = fmt.Errorf("%d logins were used within minutes: try again in %v", maxUsed, usedTime)
)

// usedTokens remembers the used tokens until they are no longer valid anywhere. It keeps them in a file, so that a token works
// only once even if the supervisor restarts. Its methods may be called from any goroutine.
type usedTokens struct {
	file string // empty: tokens are remembered until the process ends

	mu   sync.Mutex
	seen map[string]usedToken // by id
	from time.Time            // tokens issued before are refused
}

type usedToken struct {
	Subject string `json:"sub"`
	Until   int64  `json:"until"` // seconds since 1970
}

// openUsed reads the used tokens. If the file is unreadable, it refuses all tokens that might be in the file.
func openUsed(file string, now time.Time) (*usedTokens, error) {
	u := &usedTokens{file: file, seen: map[string]usedToken{}}
	if file == "" {
		return u, nil
	}
	seen, err := durable.Load(file, "used logins", maxUsedBytes, nil, func(b []byte) (out map[string]usedToken, err error) {
		return out, json.Unmarshal(b, &out)
	})
	if err != nil {
		u.from = now.Add(pki.WebSkew)
	}
	if seen != nil {
		u.seen = seen
	}
	return u, err
}

// use marks a token as used now. It returns an error if the token must be refused.
func (u *usedTokens) use(c pki.WebClaims, now time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, used := u.seen[c.ID]; used {
		return errUsed
	}
	if signed := time.Unix(c.Issued, 0); signed.Before(u.from) {
		return fmt.Errorf("the logins used before this supervisor's start are unknown: log in anew in %v",
			max(0, u.from.Sub(now)).Round(time.Second))
	}
	mine := 0
	for id, t := range u.seen {
		if now.After(time.Unix(t.Until, 0).Add(usedTime)) {
			delete(u.seen, id)
		} else if t.Subject == c.Subject {
			mine++
		}
	}
	switch {
	case mine >= maxUsedSubject:
		return errManyUsed
	case len(u.seen) >= maxUsed:
		return errTableFull
	}
	u.seen[c.ID] = usedToken{c.Subject, c.Expires}
	if err := u.save(); err != nil {
		return fmt.Errorf("mark the login as used: %w", err)
	}
	return nil
}

func (u *usedTokens) save() error {
	if u.file == "" {
		return nil
	}
	b, err := json.Marshal(u.seen)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(u.file), 0o700); err != nil {
		return err
	}
	return durable.Replace(u.file, b)
}
