DROP INDEX journal_by_commit;
