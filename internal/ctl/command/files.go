package command

import (
	"fmt"
	"io"
	"os"
	"regexp"
)

const stdinName = "the standard input"

// Position matches protojson's position of an error in its JSON, which is not the user's file.
var Position = regexp.MustCompile(`^proto:\s*(\(line \d+:\d+\): )?`)

// ReadBounded reads a file, or the standard input for "-", and returns it with its name for errors.
func ReadBounded(file string, stdin io.Reader, most int) (content []byte, name string, err error) {
	in := stdin
	if file == "-" {
		file = stdinName
	} else {
		f, err := os.Open(file)
		if err != nil {
			return nil, file, Usage(err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
	if err != nil {
		return nil, file, fmt.Errorf("read %s: %w", file, err)
	}
	if len(b) > most {
		return nil, file, Usagef("%s: more than %d bytes", file, most)
	}
	return b, file, nil
}
