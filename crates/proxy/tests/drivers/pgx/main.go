// What applications do with pgx, through the proxy. PGHOST and so on say where it is.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const table = "driver_pgx"

var ctx = context.Background()

func must(err error, what string) {
	if err != nil {
		panic(fmt.Sprintf("%s: %v", what, err))
	}
}

func check(holds bool, what string) {
	if !holds {
		panic(what)
	}
}

func connect() *pgx.Conn {
	connection, err := pgx.Connect(ctx, "sslmode=disable")
	must(err, "connect")
	return connection
}

func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return fmt.Sprint(err)
}

func prepares(connection *pgx.Conn) {
	for number := range 5 {
		var next int
		err := connection.QueryRow(ctx, "SELECT $1::int + 1", number).Scan(&next)
		must(err, "prepared")
		check(next == number+1, "prepared")
	}
}

func count(connection *pgx.Conn) (rows int) {
	must(connection.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&rows), "count")
	return rows
}

func run(connection *pgx.Conn, text string, arguments ...any) {
	_, err := connection.Exec(ctx, text, arguments...)
	must(err, text)
}

func batches(connection *pgx.Conn) {
	batch := &pgx.Batch{}
	for number := range 100 {
		batch.Queue("INSERT INTO "+table+" VALUES ($1)", number)
	}
	batch.Queue("SELECT count(*) FROM " + table)
	results := connection.SendBatch(ctx, batch)
	for range 100 {
		_, err := results.Exec()
		must(err, "batch")
	}
	var rows int
	must(results.QueryRow().Scan(&rows), "batch")
	must(results.Close(), "batch")
	check(rows == 100, "a batch")
	run(connection, "TRUNCATE "+table)
}

func copies(connection *pgx.Conn) {
	rows := make([][]any, 1000)
	for number := range rows {
		rows[number] = []any{int64(number)}
	}
	copied, err := connection.CopyFrom(ctx, pgx.Identifier{table}, []string{"a"}, pgx.CopyFromRows(rows))
	must(err, "copy in")
	check(copied == 1000, "copy in")
	var out bytes.Buffer
	tag, err := connection.PgConn().CopyTo(ctx, &out, "COPY "+table+" TO STDOUT")
	must(err, "copy out")
	check(tag.RowsAffected() == 1000, "copy out")
	run(connection, "TRUNCATE "+table)
}

func cancels(connection *pgx.Conn) {
	go func() {
		time.Sleep(300 * time.Millisecond)
		must(connection.PgConn().CancelRequest(ctx), "cancel")
	}()
	_, err := connection.Exec(ctx, "SELECT pg_sleep(60)")
	check(code(err) == "57014", code(err))
}

func pools() {
	pool, err := pgxpool.New(ctx, "sslmode=disable pool_max_conns=4")
	must(err, "pool")
	defer pool.Close()
	var all sync.WaitGroup
	for worker := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			for number := range 20 {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", worker*100+number)
					return err
				})
				must(err, "pooled")
			}
		}()
	}
	all.Wait()
}

func survives(idle, busy *pgx.Conn) {
	run(idle, "SET work_mem = '7MB'")
	prepares(idle)
	tx, err := busy.Begin(ctx)
	must(err, "begin")
	_, err = tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", 1001)
	must(err, "before")
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	_, err = tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1)", 1002)
	must(err, "after")
	must(tx.Commit(ctx), "commit")
	prepares(idle)
	var memory string
	must(idle.QueryRow(ctx, "SHOW work_mem").Scan(&memory), "show")
	check(memory == "7MB", memory)
	check(count(idle) == 82, "all rows")
}

func main() {
	first, second := connect(), connect()
	run(first, "CREATE TABLE "+table+" (a bigint)")
	prepares(first)
	batches(first)
	copies(first)
	cancels(first)
	pools()
	survives(first, second)
	fmt.Println("done")
}
