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
	"github.com/lofamo/lofamo/internal/weblogin"
)

// Bounds of the used tokens that are known.
const (
	maxUsed        = 4096    // beyond it logins are refused, and no token is forgotten
	maxUsedSubject = 64      // of one subject, so that nobody keeps others out
	maxUsedBytes   = 4 << 20 // of the file
	// usedTime is how long a token is known after its end, beyond the difference of clocks for which a token is taken.
	usedTime = 10 * time.Minute
)

var (
	errUsed      = errors.New("the login was used already: 'lofamoctl web' makes another")
	errManyUsed  = fmt.Errorf("%d logins of this subject were used within minutes: try again in %v", maxUsedSubject, usedTime)
	errTableFull = fmt.Errorf("%d logins were used within minutes: try again in %v", maxUsed, usedTime)
)

// usedTokens knows which tokens were used, until nobody would take them any more. It keeps them in a file, so that a token works once
// also where the supervisor is restarted in between. Its methods may be called from any goroutine.
type usedTokens struct {
	file string // empty: tokens are known until the end of the process

	mu   sync.Mutex
	seen map[string]usedToken // by id
	from time.Time            // tokens issued before are refused
}

type usedToken struct {
	Subject string `json:"sub"`
	Until   int64  `json:"until"` // seconds since 1970
}

// openUsed reads the tokens that were used. With a file that cannot be read, the tokens that might stand in it are refused.
func openUsed(file string, now time.Time) (*usedTokens, error) {
	u := &usedTokens{file: file, seen: map[string]usedToken{}}
	if file == "" {
		return u, nil
	}
	seen, err := durable.Load(file, "used logins", maxUsedBytes, nil, func(b []byte) (out map[string]usedToken, err error) {
		return out, json.Unmarshal(b, &out)
	})
	if err != nil {
		u.from = now.Add(weblogin.Skew)
	}
	if seen != nil {
		u.seen = seen
	}
	return u, err
}

// use notes that a token is used now. An error says why it is not to be taken.
func (u *usedTokens) use(c weblogin.Claims, now time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, used := u.seen[c.ID]; used {
		return errUsed
	}
	if time.Unix(c.Issued, 0).Before(u.from) {
		return fmt.Errorf("which logins were used is not known since this supervisor's start: try again in %v", u.from.Sub(now).Round(time.Second))
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
		return fmt.Errorf("the login could not be noted as used: %w", err)
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
