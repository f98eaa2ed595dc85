package process

import (
	"fmt"
	"os"

	"github.com/lofamo/lofamo/internal/trusted"
)

// checkFile rejects a program that somebody else could change or replace.
func (c Command) checkFile() error {
	at, err := trusted.Path(c.Path, trusted.NoGroup)
	if err != nil {
		return fmt.Errorf("command %s: %w", c.Name, err)
	}
	st, err := os.Lstat(at)
	if err != nil {
		return fmt.Errorf("command %s: %w", c.Name, err)
	}
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return fmt.Errorf("command %s: %s: given %s: want a file that may be executed", c.Name, at, st.Mode())
	}
	return nil
}
