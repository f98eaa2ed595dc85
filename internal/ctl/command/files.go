package command

import (
	"fmt"
	"io"
	"regexp"

	"github.com/lofamo/lofamo/internal/config"
)

const stdinName = "the standard input"

// Position matches protojson's position of an error in its JSON, which is not the user's file.
var Position = regexp.MustCompile(`^proto:\s*(\(line \d+:\d+\): )?`)

// ReadBounded reads a file as config.ReadBounded does, or the standard input for "-", and returns it with its name for errors.
func ReadBounded(file string, stdin io.Reader, most int) (content []byte, name string, err error) {
	if file != "-" {
		b, err := config.ReadBounded(file, most)
		if err != nil {
			return nil, file, Usage(err)
		}
		return b, file, nil
	}
	b, err := io.ReadAll(io.LimitReader(stdin, int64(most)+1))
	if err != nil {
		return nil, stdinName, fmt.Errorf("read %s: %w", stdinName, err)
	}
	if len(b) > most {
		return nil, stdinName, Usagef("%s: more than %d bytes", stdinName, most)
	}
	return b, stdinName, nil
}
