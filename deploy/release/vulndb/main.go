// Command vulndb finds out, before anything is built for it, whether the database of known
// vulnerabilities can be asked. It prints nothing if so, and else a line that says why not,
// which is no failure: a build without a network is one that works. The argument is the
// database's address, as govulncheck takes it: https://, http:// or file://.
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// patience is how long make lint waits for a server that does not answer.
const patience = 4 * time.Second

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: vulndb <address of the database>")
		os.Exit(2)
	}
	database := os.Args[1]
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := reach(ctx, database); err != nil {
		fmt.Printf("vulnerabilities are not looked for: cannot reach their database %s: %v\n", database, err)
	}
}

// reach asks for the smallest file that each database has.
func reach(ctx context.Context, database string) error {
	u, err := url.Parse(database)
	if err != nil {
		return err
	}
	u = u.JoinPath("index", "db.json")
	if u.Scheme == "file" {
		_, err := os.Stat(filepath.FromSlash(u.Path))
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return nil
}
