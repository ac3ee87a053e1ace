"""Reading a site's table, as its file says, into Arrow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedshed._utils.errors import ConfigError, UnreadableError
from fedshed._utils.files import file_hash, in_words
from fedshed.deployment.config import SiteFile, Source
from fedshed.tables.frozen import frozen_hash, needed
from fedshed.tables.reading import read_table


def read(site: SiteFile, folder: Path, text: tuple[str, ...] = ()) -> Any:
    """The columns a site offers, under the study's names; `text` are those whose numbers are codes."""
    names = site.columns or ()
    own = names if isinstance(names, dict) else {name: name for name in names}
    table = _read(site.name, site.table, folder, tuple(own.get(name, name) for name in text))
    if site.columns is None:
        return table
    lacking = [name for name in own.values() if name not in table.column_names]
    if lacking:
        raise UnreadableError(
            f"site {site.name!r}: [columns] in site.toml names columns that the table does not have: "
            f"{', '.join(lacking)}; correct them there"
        )
    return table.select(list(own.values())).rename_columns(list(own))


def table_hash(site: SiteFile, folder: Path, table: Any) -> str:
    """The SHA-256 by which a table is known: of its file, or of the rows that a query gave."""
    if site.table.file is None:
        return frozen_hash(table).hex()
    try:
        return file_hash(folder / site.table.file)
    except OSError as error:
        raise unreadable(site.name, site.table, folder, error) from error


def unreadable(site: str, source: Source, folder: Path, error: Exception) -> UnreadableError:
    """The error of a table that cannot be read, with what to do if there is no such file."""
    why = in_words(error) if isinstance(error, OSError) else str(error)
    missing = source.file is not None and not (folder / source.file).exists()
    remedy = "; name your table under [table] in site.toml" if missing else ""
    return UnreadableError(f"site {site!r}: its table cannot be read: {why}{remedy}")


def _read(site: str, source: Source, folder: Path, text: tuple[str, ...]) -> Any:
    try:
        if source.sql is not None:
            return _query(source, folder)
        return read_table(folder / str(source.file), source.csv_format(text))
    except ConfigError:
        raise
    except Exception as error:  # any error of a file or a database
        raise unreadable(site, source, folder, error) from error


def _query(source: Source, folder: Path) -> Any:
    if source.url is not None:
        sql, pandas = needed("sqlalchemy", "sql"), needed("pandas", "data")
        engine = sql.create_engine(os.path.expandvars(source.url))
        with engine.connect() as connection:
            frame = pandas.read_sql_query(sql.text(source.sql), connection)
        return needed("pyarrow", "data").Table.from_pandas(frame, preserve_index=False)
    database = ":memory:" if source.database is None else str(folder / source.database)
    place = str(folder).replace("'", "''")
    with needed("duckdb", "sql").connect(database, read_only=source.database is not None) as db:
        db.execute(f"SET file_search_path = '{place}'")
        return db.sql(source.sql).to_arrow_table()
